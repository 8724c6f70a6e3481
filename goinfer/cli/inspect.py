"""`goinfer inspect`: what is in a bundle."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goinfer.bundle_format.errors import UsageError
from goinfer.cli.options import Bundle, Json, Target, at_most_one, print_json, size

if TYPE_CHECKING:
    from goinfer.bundle_format.plan import Plan, Weight
    from goinfer.bundle_format.reader import Bundle as OpenBundle


def inspect(
    model: Bundle,
    graph: Annotated[bool, typer.Option("--graph", help="The model as a graph of operations.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="The steps that run, and their buffers.")] = False,
    asm: Annotated[str | None, typer.Option("--asm", help="Disassembly of this kernel; `list` names them all.")] = None,
    target: Target = None,
    json: Json = False,
) -> None:
    """Model, sizes, targets, and for every tensor its format and its error against the source."""
    from goinfer.bundle_format.plan import Plan
    from goinfer.bundle_format.reader import Bundle as OpenBundle

    at_most_one(graph=graph, plan=plan, asm=asm is not None)
    if target is not None and asm is None:
        raise UsageError("--target: has a meaning only together with --asm")
    with OpenBundle.open(model, verify="off") as bundle:  # no weight is looked at
        parsed = Plan.from_bytes(bundle.section("plan"))
        if graph:
            text = bytes(bundle.section("graph")).decode()
            print_json({"graph": text}) if json else print(text)
        elif plan:
            print_json(asdict(parsed)) if json else print("\n".join(_plan_lines(parsed)))
        elif asm is not None:
            found = _asm(bundle, asm, target)
            print_json({"kernel": asm, "lines": found}) if json else print("\n".join(found))
        elif json:
            print_json(_facts(bundle, parsed))
        else:
            print("\n".join(_lines(bundle, parsed, model)))


def _facts(bundle: "OpenBundle", plan: "Plan") -> dict[str, Any]:
    from goinfer.bundle_format.describe import describe

    return {
        **describe(bundle).as_dict(),
        "model": {"layers": plan.n_layers, "hidden": plan.hidden, "vocab": plan.vocab, "context": plan.max_context},
        "tensors": [asdict(weight) for weight in plan.weights],
    }


def _lines(bundle: "OpenBundle", plan: "Plan", path: Path) -> list[str]:
    from goinfer.bundle_format.describe import describe

    manifest = bundle.manifest
    matrices = [w for w in plan.weights if w.n * w.k > 0 and w.format != "vector"]
    count, stored = sum(w.n * w.k for w in matrices), sum(w.nbytes for w in matrices)
    head = [
        f"{path.name}: {manifest.get('family')}, recipe {manifest.get('recipe')},"
        f" {count / 1e6:.4g} M parameters in {8 * stored / max(1, count):.2f} bits each",
        f"{plan.n_layers} layers, hidden {plan.hidden}, vocabulary {plan.vocab}, up to {plan.max_context} positions,"
        f" kv {manifest.get('default_kv')}",
        f"targets: {', '.join(bundle.targets)}",
        f"tokenizer: {'yes' if bundle.has('tokenizer') else 'none, token ids only'}",
        "",
    ]
    return [*head, *describe(bundle).lines(), "", *_tensor_lines(plan.weights)]


def _tensor_lines(weights: "list[Weight]") -> list[str]:
    """One line a tensor. The error is relative to the source, |stored - source| / |source|."""
    rows: list[tuple[str, ...]] = [("tensor", "source", "stored", "shape", "size", "error")]
    for w in weights:
        kinds = "+".join(dict.fromkeys(w.source_types))
        error = "exact" if w.error == 0 else f"{w.error:.2e}"
        rows.append((w.name, kinds, w.format, f"{w.n} x {w.k}", size(w.nbytes), error))
    return _columns(rows)


def _plan_lines(plan: "Plan") -> list[str]:
    rows: list[tuple[str, ...]] = [("step", "kernel", "operands", "ints", "floats")]
    for i, step in enumerate(plan.steps):
        fields = asdict(step)
        texts = [" ".join(map(str, fields.get(name) or ())) for name in ("operands", "ints", "floats")]
        rows.append((str(i), step.kernel, texts[0], texts[1], texts[2]))
    buffers: list[tuple[str, ...]] = [("buffer", "offset a row", "bytes a row")]
    buffers += [(b.name, str(b.row_offset), str(b.row_bytes)) for b in plan.buffers]
    return [*_columns(rows), "", *_columns(buffers), "", f"kernels: {len(plan.kernels)}"]


def _columns(rows: "list[tuple[str, ...]]") -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def _asm(bundle: "OpenBundle", symbol: str, target: str | None) -> list[str]:
    from goinfer.codegen.disassemble import disassemble
    from goinfer.codegen.target import target_named

    chosen = target or _native(bundle)
    if chosen not in bundle.targets:
        raise UsageError(f"no target {chosen} in this bundle; it has {', '.join(bundle.targets)}")
    exports = {str(k): int(v) for k, v in bundle.manifest["targets"][chosen]["exports"].items()}
    if symbol == "list":
        return sorted(exports)
    return disassemble(bundle.section("code", chosen), exports, symbol, target_named(chosen))


def _native(bundle: "OpenBundle") -> str:
    """The target that would run here; the first one where none would."""
    from goinfer.bundle_format.errors import GoinferError
    from goinfer.runtime.cpu import choose_target

    try:
        return choose_target(bundle.manifest["targets"], None)
    except GoinferError:
        return bundle.targets[0]
