"""Broken controls: deliberately wrong variants of a family, which parity must refuse.

A mutation changes the family's config, its tensor names, the ops its graph is built from, or the weights as they are
read. Each runs through the reference executor on the tiny fixtures; the bars lie between the correct run and the
closest control. A control that no prompt can see means that the fixture is too weak.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from goinfer.codegen.mlir_context import load_mlir
from goinfer.compiler.checkpoints.tensor_map import AS_STORED
from goinfer.compiler.family import BuiltModel, Family
from goinfer.gates.compare import F32, Comparison, compare_hidden, compare_logits
from goinfer.gates.fixtures import Fixture, tiny_fixtures
from goinfer.gates.goldens import Goldens, load_goldens

Change = Callable[[Family], Family]
Read = Callable[[str, int, int], F32]


@dataclass(frozen=True)
class Mutation:
    """One way to be wrong, on the fixtures where it applies ("family/variant")."""

    name: str
    fixtures: tuple[str, ...]
    change: Change = lambda family: family
    spoil: Callable[[Read], Read] | None = None


@dataclass(frozen=True)
class Caught:
    """What a mutation did to one fixture: the worst figures over prompts, and whether a bar was missed."""

    mutation: str
    fixture: str
    caught: bool
    logits_rel_l2: float
    logits_cosine: float
    hidden_rel_l2: float


def with_config(**changes: Any) -> Change:
    """Replace fields of the decoder config; a callable gets the old config."""

    def change(family: Family) -> Family:
        def configure(view: Any, sources: Any) -> Any:
            c = family.configure(view, sources)
            return replace(c, **{k: v(c) if callable(v) else v for k, v in changes.items()})

        return replace(family, configure=configure, tensors=_all_spare(family))

    return change


def with_layers(**changes: Any) -> Change:
    """Replace fields of every layer's attention; a callable gets the old attention."""
    return with_config(
        layers=lambda c: tuple(
            replace(a, **{k: v(a) if callable(v) else v for k, v in changes.items()}) for a in c.layers
        )
    )


def with_builder(**methods: Any) -> Change:
    """Replace graph builder methods; each gets the real builder first, then the call's arguments."""

    class Proxy:
        def __init__(self, builder: Any):
            self._builder = builder

        def __getattr__(self, name: str) -> Any:
            if name in methods:
                return lambda *a, **k: methods[name](self._builder, *a, **k)
            return getattr(self._builder, name)

    def change(family: Family) -> Family:
        build = family.build
        return replace(family, build=lambda g, c: build(Proxy(g), c), tensors=_all_spare(family))  # type: ignore[arg-type]

    return change


def without_norm(suffix: str) -> Change:
    """Leave out the norms whose weight's name ends so."""

    def rms_norm(g: Any, x: Any, weight: str, *rest: Any) -> Any:
        return x if weight.endswith(suffix) else g.rms_norm(x, weight, *rest)

    return with_builder(rms_norm=rms_norm)


def swapped(one: str, other: str) -> Change:
    """Exchange the sources of two tensors of every layer."""

    def change(family: Family) -> Family:
        names = {row.graph: row for row in family.tensors}
        a, b = names[f"blk.{{i}}.{one}.weight"], names[f"blk.{{i}}.{other}.weight"]
        moved = {a.graph: replace(a, hf=b.hf, gguf=b.gguf), b.graph: replace(b, hf=a.hf, gguf=a.gguf)}
        return replace(family, tensors=tuple(moved.get(row.graph, row) for row in family.tensors))

    return change


def stored_norms(family: Family) -> Family:
    """Forget that a safetensors norm of this family multiplies by 1 + w."""
    return replace(family, tensors=tuple(replace(row, hf_transform=AS_STORED) for row in family.tensors))


def _all_spare(family: Family) -> tuple[Any, ...]:
    """The tensor rows, with none of them an error when a mutation leaves it unused."""
    return tuple(replace(row, spare=True) for row in family.tensors)


def powered(exponent: float) -> Callable[[Any], Any]:
    """Every rope table with another base."""
    return lambda c: {
        name: replace(t, inv_freq=tuple(float(np.float32(f**exponent)) for f in t.inv_freq))
        for name, t in c.ropes.items()
    }


def spoiled(name: str, rows: slice, columns: slice, value: float) -> Callable[[Read], Read]:
    """A read whose tensor `name` has a block overwritten."""

    def wrap(read: Read) -> Read:
        def spoilt(tensor: str, start: int, stop: int) -> F32:
            got = read(tensor, start, stop).copy()
            if tensor == name:
                inside = np.zeros((stop, *got.shape[1:]), bool)
                inside[(rows, columns) if got.ndim == 2 else (rows,)] = True
                got[inside[start:stop]] = value
            return got

        return spoilt

    return wrap


LLAMA, QWEN, GEMMA = "llama/plain", "qwen2/plain", "gemma3_text/plain"
EVERY = (LLAMA, QWEN, GEMMA)
BLOCK = (slice(0, 16), slice(32, 64))
OTHER = {"full": "sliding", "sliding": "full"}
ALL = (slice(None), slice(None), 0.0)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("eps doubled", EVERY, with_config(eps=lambda c: 2 * c.eps)),
    Mutation("logits halved", EVERY, with_builder(logits=lambda g, x, w, v, **k: g.logits(x, w, v, scale=0.5, **k))),
    Mutation("gate and up swapped", EVERY, swapped("ffn_gate", "ffn_up")),
    Mutation("k and v swapped", EVERY, swapped("attn_k", "attn_v")),
    Mutation("rope base wrong", EVERY, with_config(ropes=powered(1.02))),
    Mutation(
        "rope interleaved", EVERY,
        with_builder(rope=lambda g, x, label, table, dim: g.rope(x, label, table, dim, interleaved=True)),
    ),
    Mutation("rope forgotten on k", EVERY, with_builder(
        rope=lambda g, x, label, *rest: x if label.endswith("k_rope") else g.rope(x, label, *rest))),
    Mutation("attention scale wrong", EVERY, with_layers(scale=lambda a: (a.head_dim + 1) ** -0.5)),
    Mutation("attention norm dropped", EVERY, without_norm(".attn_norm.weight")),
    Mutation("ffn norm dropped", EVERY, without_norm(".ffn_norm.weight")),
    Mutation("final norm dropped", EVERY, without_norm("output_norm.weight")),
    Mutation("a weight block zeroed", EVERY, spoil=spoiled("blk.1.ffn_down.weight", *BLOCK, 0.0)),
    Mutation("a NaN weight", EVERY, spoil=spoiled("blk.1.ffn_down.weight", slice(3, 4), slice(5, 6), float("nan"))),
    Mutation("q bias dropped", ("qwen2/plain", "llama/biases"), spoil=spoiled("blk.1.attn_q.bias", *ALL)),
    Mutation("output bias dropped", ("llama/biases",), spoil=spoiled("blk.1.attn_output.bias", *ALL)),
    Mutation("MLP bias dropped", ("llama/biases",), spoil=spoiled("blk.1.ffn_down.bias", *ALL)),
    Mutation("head tied though it is not", ("llama/linear",), with_config(tied=True)),
    Mutation("rope scaling forgotten", ("llama/linear", "llama/llama3", "llama/yarn"), with_config(
        ropes=lambda c: {n: replace(t, inv_freq=default_freq(t.dim, 10000.0)) for n, t in c.ropes.items()})),
    Mutation("yarn attention factor forgotten", ("llama/yarn",), with_config(
        ropes=lambda c: {n: replace(t, attention_factor=1.0) for n, t in c.ropes.items()})),
    Mutation("window one longer", ("qwen2/window", GEMMA), with_layers(window=lambda a: a.window and a.window + 1)),
    Mutation("window one shorter", ("qwen2/window", GEMMA), with_layers(window=lambda a: a.window and a.window - 1)),
    Mutation("window on no layer", ("qwen2/window", GEMMA), with_layers(window=0)),
    Mutation("window on every layer", ("qwen2/window", GEMMA), with_layers(window=8)),
    Mutation("q and k norms dropped", (GEMMA,), with_layers(qk_norm=False)),
    Mutation("post-attention norm dropped", (GEMMA,), without_norm(".post_attention_norm.weight")),
    Mutation("post-ffn norm dropped", (GEMMA,), without_norm(".post_ffw_norm.weight")),
    Mutation("norms without 1 + w", (GEMMA,), stored_norms),
    Mutation("embedding scale forgotten", (GEMMA,), with_config(embed_scale=1.0)),
    Mutation("erf for tanh GELU", (GEMMA,), with_config(act="gelu_erf")),
    Mutation("rope bases exchanged", (GEMMA,), with_layers(rope=lambda a: OTHER[a.rope])),
    Mutation("scaling on sliding layers too", ("gemma3_text/scaled",), with_config(
        ropes=lambda c: {n: replace(t, inv_freq=tuple(f / 8 for f in t.inv_freq)) if n == "sliding" else t
                         for n, t in c.ropes.items()})),
    Mutation("query scale from head_dim", (GEMMA,), with_layers(scale=lambda a: a.head_dim**-0.5)),
    Mutation("final softcap forgotten", ("gemma3_text/softcap",), with_config(logit_softcap=0.0)),
)  # fmt: skip


def default_freq(dim: int, theta: float) -> tuple[float, ...]:
    """Unscaled rotary frequencies."""
    return tuple(float(np.float32(theta ** (-i / dim))) for i in range(0, dim, 2))


def run_mutations(names: Sequence[str] | None = None) -> list[Caught]:
    """Run every mutation (or those named) on its fixtures."""
    load_mlir()
    fixtures = {
        f"{f.family}/{f.name.removeprefix('tiny/')}": f for f in tiny_fixtures(("gemma3_text", "llama", "qwen2"))
    }
    goldens = {key: load_goldens(f.goldens) for key, f in fixtures.items()}
    return [
        run_mutation(m, key, fixtures[key], goldens[key])
        for m in MUTATIONS if names is None or m.name in names for key in m.fixtures
    ]  # fmt: skip


def run_mutation(
    mutation: Mutation, key: str, fixture: Fixture, goldens: Goldens, prompts: int | None = None
) -> Caught:
    """One mutation on one fixture, through the reference executor; `prompts` takes the first few only."""
    if prompts is not None:
        goldens = replace(goldens, prompts=goldens.prompts[:prompts])
    built = build(fixture, mutation.change)
    read = built.weights.read if mutation.spoil is None else mutation.spoil(built.weights.read)
    with np.errstate(all="ignore"):
        figures = compare(built, read, goldens)
    logits, hidden = [f for f, _ in figures], [h for _, states in figures for h in states]
    return Caught(
        mutation.name, key, any(c.failures(goldens.bars) for c in (*logits, *hidden)),
        float(np.max([c.worst_rel_l2 for c in logits])), float(np.min([c.worst_cosine for c in logits])),
        float(np.max([c.worst_rel_l2 for c in hidden])),
    )  # fmt: skip


def build(fixture: Fixture, change: Change) -> BuiltModel:
    """The fixture's graph, from a changed family."""
    from goinfer.compiler.checkpoints import open_checkpoint
    from goinfer.compiler.family import build_model
    from goinfer.families.registry import family

    return build_model(change(family(fixture.family)), open_checkpoint(fixture.source))


def compare(built: BuiltModel, read: Read, goldens: Goldens) -> list[tuple[Comparison, list[Comparison]]]:
    """Logits and hidden states of every prompt against the goldens."""
    from goinfer.compiler.interpret import run

    out = []
    for prompt in goldens.prompts:
        trace = run(built.graph.view(), prompt.ids.tolist(), read)
        plain, scaled = compare_hidden(trace.hidden[:, prompt.rows], prompt.hidden)
        out.append((compare_logits(trace.logits, prompt.logits), plain + scaled))
    return out


def table(caught: Sequence[Caught]) -> str:
    """Markdown: each control with its figures, the least visible first."""
    lines = [
        "| control | fixture | caught | logits relative L2 | logits cosine | hidden relative L2 |",
        "|---|---|---|---|---|---|",
    ]
    for c in sorted(caught, key=lambda c: np.nan_to_num(max(c.logits_rel_l2, c.hidden_rel_l2), nan=np.inf)):
        lines.append(
            f"| {c.mutation} | {c.fixture} | {'yes' if c.caught else 'NO'} | {c.logits_rel_l2:.1e} |"
            f" {c.logits_cosine:.6f} | {c.hidden_rel_l2:.1e} |"
        )
    return "\n".join(lines)


def main_report(names: Sequence[str] | None = None) -> tuple[str, dict[str, Any], int]:
    """What a command line prints: the table, JSON data, and exit code 1 if a control went unseen."""
    caught = run_mutations(names)
    missed = [c for c in caught if not c.caught]
    rows = [{k: v if not isinstance(v, float) or np.isfinite(v) else "nan" for k, v in vars(c).items()} for c in caught]
    text = f"{table(caught)}\n{len(caught) - len(missed)} of {len(caught)} broken controls caught"
    return text, {"controls": rows, "exit_code": int(bool(missed))}, int(bool(missed or not caught))
