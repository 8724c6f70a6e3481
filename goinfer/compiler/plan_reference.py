"""The plan-level reference: runs a bundle's plan step by step in numpy, on the weights as they are stored.

It rounds where the program rounds (stored weights, int8 activations, keys and values in cache precision) and sums in
float64, so what is left between the two is the order of float32 sums. Statistics against the float32 model cannot see
one wrong tile of a quantised bundle; this can. One Tape is one sequence from position 0, every row wanted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.bundle_format.kernel_abi import PANEL
from goinfer.bundle_format.plan import Plan, Step, Weight
from goinfer.codegen import reference as kernels
from goinfer.codegen.errors import CompileError
from goinfer.compiler import reference as ops
from goinfer.compiler.quant.formats import format_named, quantise_activations

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_BAND_BYTES = 32 << 20


@dataclass(frozen=True)
class Codes:
    """int8 activations: codes [R, K padded], scales and sums [R, groups]; `k` columns of them are real."""

    codes: NDArray[np.int8]
    scales: F32
    sums: NDArray[np.int32]
    k: int

    @classmethod
    def of(cls, x: F32) -> "Codes":
        """The codes of f32 rows."""
        return cls(*quantise_activations(x), x.shape[1])

    @property
    def values(self) -> F64:
        """What the codes stand for, [R, k]."""
        return kernels.dequantise(self.codes, self.scales, self.k)


Value = F32 | Codes


@dataclass
class Tape:
    """Everything a sequence has at one point of the plan: buffers by name, keys and values by layer, the outputs."""

    tokens: NDArray[np.int64]
    buffers: dict[str, Value] = field(default_factory=dict)
    keys: dict[int, F32] = field(default_factory=dict)
    values: dict[int, F32] = field(default_factory=dict)
    logits: F32 | None = None
    greedy: NDArray[np.int32] | None = None

    def rows(self, operand: str) -> F32:
        """An operand's f32 rows."""
        value = self.logits if operand == "io:logits" else self.buffers[operand.removeprefix("buf:")]
        if value is None or isinstance(value, Codes):
            raise CompileError(f"plan reference: {operand} does not hold f32 rows")
        return value

    def put(self, operand: str, value: Value) -> None:
        """Store an operand; codes where the plan asked for them."""
        if operand == "io:logits":
            assert not isinstance(value, Codes)
            self.logits = value
        else:
            self.buffers[operand.removeprefix("buf:")] = value


@dataclass(frozen=True)
class PlanTrace:
    """logits [n, vocab] and hidden states [n_layers + 2, n, hidden] of a whole run."""

    logits: F32
    hidden: F32


Observe = Callable[[Step, Tape], None]


class PlanReference:
    """A plan and its weights section. Peak memory: one band of a weight in float64, and the activations."""

    def __init__(self, plan: Plan, weights: Any, kv: str):
        self.plan = plan
        self.kv = kv
        self._bytes = np.frombuffer(weights, np.uint8)
        self._weights = {w.name: w for w in plan.weights}
        self._attrs = {k.symbol: (k.kind, k.attrs) for k in plan.kernels}

    def run(self, ids: Sequence[int], observe: Observe | None = None) -> PlanTrace:
        """Run one sequence; `observe` sees the tape after every step and may change it."""
        tape = Tape(np.asarray(ids, np.int64))
        ends = {end: i for i, end in enumerate(self.plan.layer_ends)}
        hidden = []
        for number, step in enumerate(self.plan.steps, 1):
            self.apply(step, tape)
            if observe is not None:
                observe(step, tape)
            if number in ends:
                hidden.append(tape.rows(self.plan.residual).copy())
        hidden.append(tape.rows(self.plan.final_norm))
        assert tape.logits is not None
        return PlanTrace(tape.logits, np.stack(hidden))

    def kind(self, step: Step) -> tuple[str, dict[str, Any]]:
        """Kernel kind and static attributes of a step at this KV precision."""
        return self._attrs[step.kernel.replace("{kv}", self.kv)]

    def apply(self, step: Step, tape: Tape) -> None:
        """One step. Raises CompileError for a kernel kind without a meaning here."""
        kind, attrs = self.kind(step)
        if kind not in _MEANING:
            raise CompileError(f"plan reference: step {step.name}: kernel kind {kind} has no meaning here")
        _MEANING[kind](self, step, attrs, tape)

    def product(self, step: Step, bias: bool, tape: Tape) -> F64:
        """A matmul step's rows times its weights, plus its bias."""
        source = tape.buffers[step.operands[1].removeprefix("buf:")]
        x = source.values if isinstance(source, Codes) else source.astype(np.float64)
        out = np.concatenate([kernels.matmul(x, rows) for _, _, rows in self.bands(step.operands[0])], axis=1)
        return out + self.vector(step.operands[3])[: out.shape[1]] if bias else out

    def magnitude(self, step: Step, tape: Tape) -> F32:
        """sum |x| |w| of every output of a matmul about to run, what its rounding noise is proportional to."""
        source = tape.buffers[step.operands[1].removeprefix("buf:")]
        x = np.abs(source.values if isinstance(source, Codes) else source).astype(np.float32)
        out = np.concatenate([x @ np.abs(rows).T for _, _, rows in self.bands(step.operands[0])], axis=1)
        return out + np.abs(tape.rows(step.operands[2])) if self.kind(step)[1]["epilogue"] == "add" else out

    def vector(self, operand: str) -> F32:
        """A norm weight or a bias."""
        w = self._weights[operand.removeprefix("weight:")]
        return self._bytes[w.offset : w.offset + 4 * w.k].view(np.float32)

    def bands(self, operand: str) -> Iterator[tuple[int, int, F32]]:
        """(start, stop, rows) over a packed matrix."""
        w = self._weights[operand.removeprefix("weight:")]
        step = max(PANEL, _BAND_BYTES // (4 * w.k) // PANEL * PANEL)
        for start in range(0, w.n, step):
            stop = min(w.n, start + step)
            yield start, stop, self._unpack(w, start, stop)

    def matrix_rows(self, operand: str, wanted: NDArray[np.int64]) -> F32:
        """Single rows of a packed matrix, a panel at a time."""
        w = self._weights[operand.removeprefix("weight:")]
        out = np.empty((len(wanted), w.k), np.float32)
        for panel in np.unique(wanted // PANEL):
            here = wanted // PANEL == panel
            first = int(panel) * PANEL
            out[here] = self._unpack(w, first, min(w.n, first + PANEL))[wanted[here] - first]
        return out

    def _unpack(self, w: Weight, start: int, stop: int) -> F32:
        """Rows [start, stop), start a multiple of a panel."""
        fmt = format_named(w.format)
        first, size = w.offset + fmt.nbytes(start, w.k), fmt.nbytes(stop - start, w.k)
        return fmt.unpack(self._bytes[first : first + size], stop - start, w.k)

    def stored(self, x: F32, head_dim: int) -> F32:
        """Keys or values as the cache gives them back; each position and head is rounded on its own."""
        if self.kv == "f16":
            with np.errstate(over="ignore"):
                return x.astype(np.float16).astype(np.float32)
        if self.kv == "f32":
            return x
        heads = x.reshape(x.shape[0], -1, head_dim)
        peak = np.abs(heads).max(axis=2, keepdims=True)
        tiny = peak < np.float32(1e-30)
        with np.errstate(all="ignore"):
            codes = np.rint(heads * np.where(tiny, 0, np.float32(127) / peak))
            scale = np.where(tiny, np.float32(0), peak / np.float32(127))
        return (codes * scale).astype(np.float32).reshape(x.shape)


Attrs = dict[str, Any]


def _embed(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.put(s.operands[2], p.matrix_rows(s.operands[1], t.tokens) * np.float32(s.floats[0]))


def _store(t: Tape, operand: str, value: F64, rep: str) -> None:
    rows = value.astype(np.float32)
    t.put(operand, Codes.of(rows) if rep == "q8" else rows)


def _norm(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    x, k = t.rows(s.operands[0]), int(s.ints[0])
    if a["add"] != "none":
        post = p.vector(s.operands[4]) if a["add"] == "normed" else None
        x = kernels.residual(x, t.rows(s.operands[3]), post, s.floats[1]).astype(np.float32)
        t.put(s.operands[0], x)
    normed = kernels.rms(x[:, :k], p.vector(s.operands[1]), s.floats[0]) if a["norm"] == "rms" else x.astype(np.float64)
    _store(t, s.operands[2], normed, a["out"])


def _quantise(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.put(s.operands[1], Codes.of(t.rows(s.operands[0])))


def _matmul(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    out = p.product(s, bool(a["bias"]), t)
    if a["epilogue"] == "add":
        out += t.rows(s.operands[2])
    t.put(s.operands[2], out.astype(np.float32))


def _matmul_gated(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    out = p.product(s, bool(a["bias"]), t).astype(np.float32)
    _store(t, s.operands[2], kernels.gate_act(out, a["act"], int(s.ints[3]), True), a["out"])


def _qkv_post(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    dim, layer = a["head_dim"], int(str(s.ints[2]).removeprefix("kv:"))
    q_width, kv_width = a["n_heads"] * dim, a["n_kv_heads"] * dim
    q, k, v = np.split(t.rows(s.operands[0])[:, : q_width + 2 * kv_width], [q_width, q_width + kv_width], axis=1)
    table = None
    if a["rope"]:
        name = s.operands[2].removeprefix("rope:")
        found = next(r for r in p.plan.rope_tables if r.name == name)
        table = ops.RopeTable(2 * len(found.inv_freq), tuple(found.inv_freq), found.scale)
    done = []
    for x, norm, weight in ((q, a["q_norm"], s.operands[6]), (k, a["k_norm"], s.operands[7])):
        heads = x.reshape(x.shape[0], -1, dim)
        heads = ops.normalise(heads, p.vector(weight), s.floats[0]) if norm else heads
        done.append((heads if table is None else ops.rotate(heads, table, False)).reshape(x.shape))
    t.keys[layer], t.values[layer] = p.stored(done[1], dim), p.stored(v, dim)
    t.put(s.operands[1], done[0] * np.float32(s.floats[1]))


def _attention(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    layer = int(str(s.ints[2]).removeprefix("kv:"))
    facts = {"layer": layer, "n_heads": a["n_heads"], "n_kv_heads": a["n_kv_heads"], "head_dim": a["head_dim"],
             "window": s.ints[4], "scale": 1.0, "softcap": s.floats[0] if a["softcap"] else 0.0}  # fmt: skip
    state = ops.State(t.tokens, {}, keys={layer: t.keys[layer]}, values={layer: t.values[layer]})
    sinks = p.vector(s.operands[6]) if a["sinks"] else None
    weight = None if sinks is None else ops.Weight((a["n_heads"],), lambda i, j: sinks[i:j])
    out = ops.attention(state, facts, t.rows(s.operands[0]), weight)
    t.put(s.operands[1], Codes.of(out) if a["out"] == "q8" else out)


def _gate_act(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    _store(t, s.operands[1], kernels.gate_act(t.rows(s.operands[0]), a["act"], int(s.ints[0]), a["gated"]), a["out"])


def _softcap(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.put(s.operands[0], kernels.softcap(t.rows(s.operands[0]), s.floats[0]).astype(np.float32))


def _add(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.put(s.operands[0], t.rows(s.operands[0]) + t.rows(s.operands[1]))


def _keep_rows(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    """Every row of a tape is wanted."""


def _scale(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.put(s.operands[0], t.rows(s.operands[0]) * np.float32(s.floats[0]))


def _greedy(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    """A tape wants logits, so nothing is greedy on it."""


def _argmax(p: PlanReference, s: Step, a: Attrs, t: Tape) -> None:
    t.greedy = kernels.argmax(t.rows(s.operands[0]))


_MEANING: dict[str, Callable[[PlanReference, Step, Attrs, Tape], None]] = {
    "embed": _embed,
    "norm": _norm,
    "quantise": _quantise,
    "matmul": _matmul,
    "matmul_gated": _matmul_gated,
    "qkv_post": _qkv_post,
    "attention": _attention,
    "gate_act": _gate_act,
    "softcap": _softcap,
    "add": _add,
    "scale": _scale,
    "keep_rows": _keep_rows,
    "argmax": _argmax,
    "matmul_best": _greedy,
    "best_of": _greedy,
}


def outputs(kind: str, attrs: Attrs, step: Step) -> list[str]:
    """Operands that a step writes, the main one first; keys and values are "kv:<layer>"."""
    if kind == "norm":
        return [step.operands[2], *([step.operands[0]] if attrs["add"] != "none" else [])]
    if kind in ("matmul_best", "best_of"):
        return []
    if kind == "qkv_post":
        return [step.operands[1], str(step.ints[2])]
    return [step.operands[_TARGET[kind]]]


_TARGET = {
    "embed": 2, "quantise": 1, "matmul": 2, "matmul_gated": 2, "attention": 1, "gate_act": 1, "softcap": 0, "add": 0,
    "scale": 0, "keep_rows": 0, "argmax": 1,
}  # fmt: skip
