"""`goinfer gate bisect`: the first layer, and in it the first op, where a model stops computing what it should.

Three sides run the same prompt in float32: the native program, the graph in the reference executor (float64 sums),
and transformers (or a fixture's goldens). Layers are compared first. Where the graph agrees with transformers the
native code is at fault, and its steps are compared with the graph's ops; where it does not, the graph (family file,
tensor map, config) is, and its ops are compared with the inputs and outputs of transformers' modules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import goinfer
from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.reader import Bundle
from goinfer.codegen.mlir_context import load_mlir
from goinfer.compiler.family import BuiltModel, Family
from goinfer.gates import oracle, steps
from goinfer.gates.bisect_ops import OpFigures, graph_against_modules, native_against_graph
from goinfer.gates.build import loaded
from goinfer.gates.compare import EXACT, F32, Comparison, compare_hidden, compare_logits
from goinfer.gates.fixtures import GOLDENS, tiny_fixtures
from goinfer.gates.goldens import load_goldens


@dataclass(frozen=True)
class LayerFigures:
    """One hidden state (or the logits) on the three sides, in pairs."""

    name: str
    native_reference: Comparison
    native_graph: Comparison
    graph_reference: Comparison

    @property
    def bad(self) -> bool:
        """The native program is not where the reference is."""
        return bool(self.native_reference.failures(EXACT))

    def line(self) -> str:
        """The three distances, relative L2 and cosine of the worst position."""
        pairs = (
            ("native/reference", self.native_reference),
            ("native/graph", self.native_graph),
            ("graph/reference", self.graph_reference),
        )
        return f"{self.name}: " + ", ".join(f"{k} {c.worst_rel_l2:.2e} (cos {c.worst_cosine:.6f})" for k, c in pairs)


@dataclass(frozen=True)
class BisectReport:
    """What was found. `culprit` is empty when no layer is bad."""

    model: str
    reference: str
    layers: list[LayerFigures] = field(default_factory=list)
    culprit: str = ""
    ops: list[OpFigures] = field(default_factory=list)

    @property
    def first_bad(self) -> LayerFigures | None:
        """The first layer where native and reference differ."""
        return next((layer for layer in self.layers if layer.bad), None)

    @property
    def exit_code(self) -> int:
        """0 when every layer is within the bars."""
        return 1 if self.first_bad else 0

    def text(self) -> str:
        """The report for a terminal."""
        bad = self.first_bad
        if bad is None:
            worst = max(self.layers, key=lambda x: x.native_reference.worst_rel_l2)
            return (
                f"bisect: {self.model}: all {len(self.layers)} states agree with {self.reference}; worst {worst.line()}"
            )
        lines = [f"bisect: {self.model} against {self.reference}", f"first bad layer: {bad.line()}", self.culprit]
        first = next((op for op in self.ops if op.bad), None)
        shown = self.ops[: self.ops.index(first) + 1][-4:] if first else self.ops[-2:]
        return "\n".join(lines + [f"  {'BAD ' if op.bad else 'good'} {op.line()}" for op in shown])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        bad = self.first_bad
        return {
            "model": self.model, "reference": self.reference, "exit_code": self.exit_code, "culprit": self.culprit,
            "first_bad_layer": bad.name if bad else None,
            "layers": [
                {"name": x.name, "native_reference": x.native_reference.as_dict(),
                 "native_graph": x.native_graph.as_dict(), "graph_reference": x.graph_reference.as_dict()}
                for x in self.layers
            ],
            "ops": [op.as_dict() for op in self.ops],
        }  # fmt: skip


@dataclass(frozen=True)
class States:
    """Hidden states [layers + 2, positions, hidden] and logits of one side, at the positions that are compared."""

    hidden: F32
    logits: F32


@dataclass(frozen=True)
class Reference:
    """The side that is right by definition. `rows` are the prompt's positions it has hidden states for."""

    name: str
    ids: list[int]
    rows: Any
    states: States
    modules: Any = None


def run_bisect(
    source: Path, ids: Sequence[int] | None = None, bundle: Path | None = None, family: Family | None = None
) -> BisectReport:
    """Bisect a checkpoint; `bundle` is one made from it with -quant f32 (default: made here).

    Raises OracleMissing when the checkpoint has no goldens beside it and torch is not installed.
    """
    load_mlir()
    built = built_model(source, family)
    reference = reference_of(source, ids)
    with opened(source, bundle, family) as model:
        logits, hidden = model.forward(reference.ids, hidden_states=True)
        native = States(hidden[:, reference.rows], logits)
        graph = graph_states(built, reference)
        report = BisectReport(source.name, reference.name, layers(native, graph, reference.states))
        bad = report.first_bad
        if bad is None:
            return report
        graph_wrong = bool(bad.graph_reference.failures(EXACT))
        if not graph_wrong:
            ops = native_against_graph(model, built, reference.ids)
            culprit = "the graph agrees with the reference: the native code is at fault"
        elif reference.modules is not None:
            ops = graph_against_modules(built, reference.ids, reference.modules)
            culprit = "the graph disagrees with the reference: family file, tensor map or config is at fault"
        else:
            ops, culprit = [], f"the graph disagrees with the reference; naming the op needs {oracle.missing()}"
        return BisectReport(report.model, report.reference, report.layers, culprit + first_op(ops), ops)


def first_op(ops: Sequence[OpFigures]) -> str:
    """The end of the culprit's sentence."""
    bad = next((op for op in ops if op.bad), None)
    return f"; first bad op: {bad.label}" if bad else ""


def built_model(source: Path, family: Family | None = None) -> BuiltModel:
    """The checkpoint's graph at the model stage."""
    from goinfer.compiler.checkpoints import open_checkpoint
    from goinfer.compiler.family import build_model
    from goinfer.families.registry import family as family_named

    checkpoint = open_checkpoint(source)
    return build_model(family or family_named(checkpoint.architecture), checkpoint)


def reference_of(source: Path, ids: Sequence[int] | None) -> Reference:
    """transformers where it is installed, else the goldens beside a tiny checkpoint (whose prompt is the longest).

    A tiny GGUF file is the twin of the folder it lies in, which transformers reads without losing anything.
    """
    golden = (source if source.is_dir() else source.parent) / GOLDENS
    stored = max(load_goldens(golden).prompts, key=lambda p: len(p.ids)) if golden.is_file() else None
    if oracle.missing() and stored is not None and ids is None:
        states = States(stored.hidden, stored.logits)
        return Reference("goldens", stored.ids.tolist(), stored.rows, states)
    loaded_oracle = oracle.Oracle.load(source if stored is None else golden.parent)
    prompt = [
        int(i)
        for i in (
            ids
            if ids is not None
            else stored.ids
            if stored is not None
            else steps.default_ids(int(loaded_oracle.model.config.vocab_size))
        )
    ]
    logits, hidden = loaded_oracle.forward(prompt)
    return Reference("transformers", prompt, np.arange(len(prompt)), States(hidden, logits), loaded_oracle)


def opened(source: Path, bundle: Path | None, family: Family | None) -> Any:
    """A loaded model: the bundle given, or one made for this."""
    return loaded(source, family=family) if bundle is None else goinfer.load(bundle)


def graph_states(built: BuiltModel, reference: Reference) -> States:
    """The reference executor's side."""
    from goinfer.compiler.interpret import run

    trace = run(built.graph.view(), reference.ids, built.weights.read)
    return States(trace.hidden[:, reference.rows], trace.logits)


def layers(native: States, graph: States, reference: States) -> list[LayerFigures]:
    """Every state in order of computation, the logits last."""
    pairs = ((native, reference), (native, graph), (graph, reference))
    columns = [[*compare_hidden(a.hidden, b.hidden)[0], compare_logits(a.logits, b.logits)] for a, b in pairs]
    return [LayerFigures(row[0].what.removeprefix("hidden "), *row) for row in zip(*columns, strict=True)]


def named_source(model: str) -> Path:
    """A checkpoint's path, or "family/variant" for a tiny fixture. Raises UsageError when it is neither."""
    if Path(model).exists():
        return Path(model)
    family, _, variant = model.partition("/")
    for fixture in tiny_fixtures([family]) if variant else []:
        if fixture.name == f"tiny/{variant}":
            return fixture.source
    raise UsageError(f"bisect: {model}: neither a checkpoint nor family/variant of a tiny fixture")


def recipe_of(bundle: Path) -> str:
    """The recipe a bundle was made with."""
    with Bundle.open(bundle, "off") as opened_bundle:
        return str(opened_bundle.manifest["recipe"])


def main_report(
    model: str, ids: Sequence[int] | None = None, bundle: str | None = None
) -> tuple[str, dict[str, Any], int]:
    """What the command line prints: text, JSON data, exit code. Raises GoinferError for what cannot be read.

    A bundle that is not f32 differs from the float32 reference in every layer by design: it is checked step by step
    against the reference of its own plan instead.
    """
    if bundle is not None and recipe_of(Path(bundle)) != "f32":
        return steps.main_report(Path(bundle), ids)
    report = run_bisect(named_source(model), ids, Path(bundle) if bundle else None)
    return report.text(), report.as_dict(), report.exit_code
