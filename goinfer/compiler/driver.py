"""From a checkpoint to a bundle: graph, passes, plan, code images, weights, one atomic write."""

import json
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from goinfer.bundle_format.plan import Plan
from goinfer.bundle_format.writer import BundleWriter
from goinfer.codegen.cache import versions
from goinfer.codegen.image import CodeImage
from goinfer.codegen.images import compile_images
from goinfer.codegen.target import TARGETS, Target, target_named
from goinfer.compiler.family import Family
from goinfer.compiler.pack_weights import Progress, pack_weights
from goinfer.compiler.program import compile_program
from goinfer.compiler.quant.recipes import recipe_named
from goinfer.compiler.tokenizer import build_tokenizer_section
from goinfer.version import VERSION


@dataclass(frozen=True)
class Summary:
    """What a prequant made."""

    path: Path
    family: str
    recipe: str
    targets: list[str]
    source_bytes: int
    bundle_bytes: int
    weight_bytes: int
    parameters: int
    bits_per_weight: float
    tokenizer: bool
    notes: tuple[str, ...] = ()
    """Sentences on what was decided for this checkpoint (a head that is the embedding, unused tensors)."""


def compile_checkpoint(
    checkpoint: Any, family: Family, out: Path, quant: str, targets: list[str] | None = None,
    progress: Progress | None = None, stored_program: bool = False,
) -> Summary:  # fmt: skip
    """Compile an open checkpoint into a bundle at `out`, written under a temporary name and renamed when complete.

    Peak memory: the graph, the code, and a few bands of one tensor. The same checkpoint, arguments and package
    versions give the same bytes. `stored_program` is that of compiler/program.py.
    """
    recipe = recipe_named(quant)
    chosen = [target_named(t) for t in targets] if targets else list(TARGETS.values())
    report = progress or (lambda *_: None)
    program, weights = compile_program(family, checkpoint, quant, stored_program)
    plan = program.plan
    with BundleWriter(out) as writer:
        images = compile_images(plan.kernels, chosen, lambda name, i, n: report("kernels", name, i, n))
        tokenizer = checkpoint.tokenizer and build_tokenizer_section(checkpoint.tokenizer)
        writer.add_manifest(_manifest(checkpoint, family, quant, recipe.kv, chosen, images))
        writer.add("graph", "", program.graph.encode(), codec="zstd")
        if tokenizer:
            writer.add("tokenizer", "", tokenizer, align=64)
        writer.add("chat", "", _chat(checkpoint), codec="zstd")
        for name, image in images.items():
            writer.add("code", name, image.code)
        with writer.stream("weights", "") as stream:
            placed = pack_weights(stream, program.stored, plan.weights, weights, report)
        plan = replace(plan, weights=placed)
        writer.add("plan", "", plan.to_bytes(), codec="zstd")
    summary = _summary(out, checkpoint, family, quant, plan, list(images), bool(tokenizer))
    return replace(summary, notes=program.notes)


def _manifest(
    checkpoint: Any, family: Family, quant: str, kv: str, targets: list[Target], images: dict[str, CodeImage]
) -> dict[str, Any]:
    """Facts about the bundle: no clock, no path, no host."""
    return {
        "goinfer": VERSION,
        "family": family.name,
        "architecture": checkpoint.architecture,
        "source": {"kind": checkpoint.kind, "tensors": len(checkpoint.tensors)},
        "recipe": quant,
        "default_kv": kv,
        "targets": {
            t.name: {"arch": t.arch, "needs": sorted(t.needs), "rank": t.baseline, "exports": images[t.name].exports}
            for t in targets
        },
        "versions": {**versions(), "zstandard": version("zstandard")},
    }


def _chat(checkpoint: Any) -> bytes:
    """Chat template and generation defaults as JSON."""
    facts = {"template": checkpoint.chat_template, "generation": checkpoint.generation}
    return json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()


def _summary(
    out: Path, checkpoint: Any, family: Family, quant: str, plan: Plan, targets: list[str], tokenizer: bool
) -> Summary:
    matrices = [w for w in plan.weights if w.format != "vector"]
    parameters = sum(w.n * w.k for w in matrices)
    return Summary(
        path=out, family=family.name, recipe=quant, targets=targets,
        source_bytes=sum(t.nbytes for t in checkpoint.tensors.values()), bundle_bytes=out.stat().st_size,
        weight_bytes=sum(w.nbytes for w in plan.weights), parameters=parameters,
        bits_per_weight=8 * sum(w.nbytes for w in matrices) / max(1, parameters), tokenizer=tokenizer,
    )  # fmt: skip
