"""What a config, a tensor table and a recipe decide before any weight is read: graph, plan, and how weights are stored.

That takes MLIR and a second or so, and depends on little, so it is kept in the cache (codegen/cache.py): a second model
of the same shape, or the same one again, needs neither.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import msgpack

from goinfer.bundle_format.plan import Plan
from goinfer.codegen import cache
from goinfer.compiler.checkpoints.source import Checkpoint
from goinfer.compiler.checkpoints.tensor_map import SourceMap, Weights
from goinfer.compiler.family import Family, read_config
from goinfer.compiler.graph_view import Param
from goinfer.compiler.plan.builder import StoredParam
from goinfer.compiler.quant.recipes import recipe_named

_SOURCES = ("bundle_format", "codegen", "compiler", "families")


@dataclass(frozen=True)
class Program:
    """A compiled graph. The plan's weights have their places, and no source types or errors yet.

    `notes` are sentences for the user on what was decided for the checkpoint.
    """

    graph: str
    plan: Plan
    stored: list[StoredParam]
    notes: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """For the cache."""
        stored = [{**asdict(s.param), "format": s.format} for s in self.stored]
        return bytes(msgpack.packb([self.graph, self.plan.to_bytes(), stored, self.notes], use_bin_type=True))

    @staticmethod
    def from_bytes(data: bytes) -> "Program":
        """The inverse of `to_bytes`, for entries that the cache has found whole."""
        graph, plan, stored, notes = msgpack.unpackb(data, raw=False, use_list=False)
        return Program(graph, Plan.from_bytes(plan), [_stored(dict(s)) for s in stored], notes)


def _stored(facts: dict[str, Any]) -> StoredParam:
    fmt = facts.pop("format")
    return StoredParam(Param(**facts), fmt)


def compile_program(family: Family, checkpoint: Checkpoint, quant: str, stored: bool) -> tuple[Program, Weights]:
    """The program, and the checkpoint's weights by graph name. The config is read and checked at every call.

    `stored`: the family is what its source files say, so that an earlier program of theirs may be taken.
    """
    sources, config = read_config(family, checkpoint)
    weights = Weights(sources, config.head_dim)
    if not stored:
        return _compile(family, sources, config, quant), weights
    tensors = [[name, list(t.shape), t.dtype] for name, t in checkpoint.tensors.items()]
    key = cache.key_of("program", _versions(), family.name, quant, checkpoint.kind, asdict(config), tensors)
    data = cache.remembered("programs", key, lambda: _compile(family, sources, config, quant).to_bytes())
    return Program.from_bytes(data), weights


def _versions() -> list[str]:
    return [*cache.toolchain(), cache.sources(*_SOURCES)]


def _compile(family: Family, sources: SourceMap, config: Any, quant: str) -> Program:
    from goinfer.compiler.family import built
    from goinfer.compiler.passes.pipeline import run_passes
    from goinfer.compiler.plan.lower import lower, place_weights

    model = built(family, sources, config)
    run_passes(model.graph)

    def source_type(part: str) -> str:
        return str(model.weights.info(part).dtype)

    plan, stored = lower(model.graph.view(), recipe_named(quant), family.precision, source_type)
    return Program(model.graph.text(), replace(plan, weights=place_weights(stored)), stored, model.notes)
