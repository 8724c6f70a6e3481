"""Op by op: the native program's steps against the graph, and the graph's ops against transformers' modules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from goinfer.compiler.family import BuiltModel
from goinfer.compiler.graph import Graph, GraphOp
from goinfer.compiler.interpret import run
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.compiler.plan_reference import outputs
from goinfer.families.registry import family
from goinfer.gates.compare import EXACT, F32, Comparison, compare_rows
from goinfer.gates.native_steps import read_f32, run_by_step


@dataclass(frozen=True)
class OpFigures:
    """One op's result on two sides; `detail` says which part of it."""

    label: str
    detail: str
    figures: Comparison

    @property
    def bad(self) -> bool:
        """Outside the bars of a hidden state."""
        return bool(self.figures.failures(EXACT))

    def line(self) -> str:
        """Both numbers."""
        f = self.figures
        return f"{self.label} ({self.detail}): relative L2 {f.worst_rel_l2:.2e}, cosine {f.worst_cosine:.7f}"

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"label": self.label, "detail": self.detail, "bad": self.bad, **self.figures.as_dict()}


def native_against_graph(model: Any, built: BuiltModel, ids: Sequence[int]) -> list[OpFigures]:
    """Every step of an f32 program whose result the fused graph names too, in order of execution."""
    wanted = fused_results(built, ids)
    figures: list[OpFigures] = []

    def after(step: Any, kind: str, attrs: Mapping[str, Any]) -> None:
        for part, name in enumerate(outputs(kind, dict(attrs), step)):
            key = (step.name, "sum" if kind == "norm" and part else "")
            key = ("", step.name) if kind == "matmul" and attrs["epilogue"] == "add" else key
            if key not in wanted or name.startswith(("kv:", "io:greedy")):
                continue
            scale = np.float32(step.floats[1]) if kind == "qkv_post" else np.float32(1)
            target = wanted[key] * scale
            found = read_f32(model.engine, name, len(ids), target.shape[1])
            figures.append(
                OpFigures(step.name, f"native {kind} against the graph", compare_rows(found, target, step.name))
            )

    run_by_step(model.engine, ids, after)
    return figures


def fused_results(built: BuiltModel, ids: Sequence[int]) -> dict[tuple[str, str], F32]:
    """(label, "") -> result of each fused op; (label, "sum") -> an add_norm's new residual stream.

    ("", label) of a linear whose result only an add_norm reads: the stream after the addition, which is what a
    matmul that adds in place leaves behind.
    """
    graph = Graph.parse(built.graph.text())
    run_passes(graph)
    view = graph.view()
    producer = {vid: op for op in view.ops for vid in op.results}
    found: dict[tuple[str, str], F32] = {}

    def observe(op: GraphOp, results: tuple[F32, ...]) -> None:
        if op.name == "add_norm":
            found[op.label, "sum"] = results[0]
            found["", producer[op.operands["delta"]].label] = results[0]
        if results and results[-1].dtype == np.float32:
            found[op.label, ""] = results[-1]

    run(view, ids, built.weights.read, observe)
    return found


def graph_against_modules(built: BuiltModel, ids: Sequence[int], reference: Any) -> list[OpFigures]:
    """Inputs and outputs of every op with a weight against those of the transformers module that owns the weight.

    Ops without weights (rope, attention, activations) show as a bad input of the next op that has one.
    """
    view = built.graph.view()
    modules = module_names(view.info.family, [p.name for p in view.params.values()])
    theirs = reference.modules(ids, sorted({"lm_head", *modules.values()}))
    values: dict[int, F32] = {}
    figures: list[OpFigures] = []
    since: list[str] = []

    def observe(op: GraphOp, results: tuple[F32, ...]) -> None:
        values.update(zip(op.results, results, strict=True))
        weight = view.params.get(op.operands.get("weight", -1))
        name = "lm_head" if op.name == "lm_head" else modules.get(weight.name, "") if weight else ""
        if name not in theirs:
            since.append(op.label)
            return
        named, (given, made) = f"{op.label} = {name}", theirs[name]
        if op.name != "embed":
            between = f"input; computed by {', '.join(since[-3:])}" if since else "input"
            figures.append(_pair(named, between, values[op.operands["x"]], given))
        figures.append(_pair(named, "output", results[0], made))
        since.clear()

    run(view, ids, built.weights.read, observe)
    return figures


def _pair(label: str, detail: str, ours: F32, theirs: F32) -> OpFigures:
    """Heads may come before positions on their side: [heads, positions, size]."""
    if theirs.ndim == 3 and theirs.shape[0] != len(ours):
        theirs = theirs.swapaxes(0, 1)
    return OpFigures(label, detail, compare_rows(ours, theirs.reshape(ours.shape), label))


def module_names(family_name: str, params: Sequence[str]) -> dict[str, str]:
    """Graph parameter -> name of the transformers module that owns it, from the family's safetensors names."""
    out = {}
    for row in family(family_name).tensors:
        if row.hf.endswith(".weight"):
            for name in params:
                layer = _layer(row.graph, name)
                if layer is not None:
                    out[name] = row.hf.replace("{i}", layer).removesuffix(".weight")
    return out


def _layer(pattern: str, name: str) -> str | None:
    """What {i} of a pattern stands for in a name; "" for a name without one, None where they do not match."""
    head, mark, tail = pattern.partition("{i}")
    if not mark:
        return "" if name == pattern else None
    middle = name[len(head) : len(name) - len(tail)]
    return middle if name.startswith(head) and name.endswith(tail) and middle.isdecimal() else None
