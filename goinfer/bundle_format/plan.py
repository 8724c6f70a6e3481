"""The plan: what a bundle's program does, as data. Codegen makes its kernels, the runtime its step table.

A plan is independent of the target, of the number of rows and of the KV precision. Sizes of buffers are a fixed part
plus a part per row, so `max_rows` is chosen at load. Serialised as msgpack with exactly the fields below; an unknown
or missing field is an error.
"""

import functools
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgpack

from goinfer.bundle_format.errors import BundleError
from goinfer.bundle_format.kernel_abi import ABI_VERSION, DOMAINS, N_FLOATS, N_INTS, N_POINTERS


class PlanError(BundleError):
    """The plan section is not a plan this version understands."""


@dataclass(frozen=True)
class Kernel:
    """One kernel to generate: `symbol` is unique, `kind` names the builder, `attrs` are its static attributes."""

    symbol: str
    kind: str
    attrs: dict[str, Any]


@dataclass(frozen=True)
class Buffer:
    """A piece of the arena: bytes [row_offset, row_offset + row_bytes) * max_rows; all offsets in bytes."""

    name: str
    row_bytes: int
    row_offset: int


@dataclass(frozen=True)
class Weight:
    """A packed tensor in the weights section. `error` is relative: |stored - source| / |source| (0 if exact)."""

    name: str
    format: str
    n: int
    k: int
    offset: int
    nbytes: int
    sources: list[str]
    source_types: list[str]
    error: float


@dataclass(frozen=True)
class RopeTable:
    """Rotary frequencies of one kind of layer: angle[p, j] = p * inv_freq[j], cos and sin times `scale`."""

    name: str
    inv_freq: list[float]
    scale: float


@dataclass(frozen=True)
class KVGroup:
    """Layers whose pages are allocated and released together. `window` 0 means every position is kept."""

    name: str
    window: int
    layers: list[int]
    n_kv_heads: list[int]
    head_dims: list[int]


@dataclass(frozen=True)
class Step:
    """One row of the step table before addresses are known.

    kernel: symbol, with `{kv}` standing for the KV precision chosen at load.
    operands: "buf:x", "weight:x", "io:x", "rope:x" (cos|sin table), "pages:group" (page table), "none".
    ints: numbers, or "kv:<layer>" (byte offset of the layer inside a page), "max_pages", or "choices" (how many ids a
    greedy token is chosen from).
    tiles: units * ceil(count of `domain` / row_tile). barrier: a later step reads what this one writes.
    """

    name: str
    kernel: str
    operands: list[str]
    ints: list[int | str]
    floats: list[float]
    domain: str
    row_tile: int
    units: int
    barrier: bool


@dataclass(frozen=True)
class Plan:
    """The whole program of a bundle. `layer_ends[i]` is the number of steps after which layer i is complete

    (entry 0: the embedding); `residual` is the buffer that then holds the hidden state (f32, hidden values a row,
    stride f32_row_bytes(hidden)) and `final_norm` the buffer with the normed rows of the wanted list.
    """

    abi: int
    vocab: int
    hidden: int
    n_layers: int
    max_context: int
    residual: str
    final_norm: str
    layer_ends: list[int]
    buffers: list[Buffer]
    weights: list[Weight]
    rope_tables: list[RopeTable]
    kv_groups: list[KVGroup]
    kernels: list[Kernel]
    steps: list[Step]

    def to_bytes(self) -> bytes:
        """Deterministic msgpack."""
        facts = {name: _plain(value) for name, value in vars(self).items()}
        return bytes(msgpack.packb(facts, use_bin_type=True))

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> "Plan":
        """Parse and check; raises PlanError naming the field."""
        try:
            raw = msgpack.unpackb(data, raw=False, strict_map_key=True)
        except Exception as e:
            raise PlanError(f"section plan: not msgpack ({e}); the file is damaged, copy it again") from e
        _check_version(raw)
        plan = _build(Plan, raw, "plan")
        parts = {
            "buffers": Buffer, "weights": Weight, "rope_tables": RopeTable,
            "kv_groups": KVGroup, "kernels": Kernel, "steps": Step,
        }  # fmt: skip
        lists = {key: [_build(cls, item, f"plan.{key}") for item in raw[key]] for key, cls in parts.items()}
        plan = Plan(**{**{f.name: getattr(plan, f.name) for f in fields(Plan)}, **lists})
        _check(plan)
        return plan


def _plain(value: Any) -> Any:
    """A field as msgpack takes it. The records of a plan are flat, so `asdict`, which copies values, is not needed."""
    return [vars(item) for item in value] if isinstance(value, list) and value and is_dataclass(value[0]) else value


@functools.cache
def _names(cls: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(cls))


def _build(cls: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise PlanError(f"section {where}: expected a map, found {type(raw).__name__}")
    names = _names(cls)
    if set(raw) != names:
        odd = sorted(set(raw) ^ names)
        raise PlanError(f"section {where}: unknown or missing field {odd[0]!r}; use a matching goinfer version")
    return cls(**raw)


def _check_version(raw: Any) -> None:
    """Before any field is missed: another version may well have others."""
    abi = raw.get("abi", ABI_VERSION) if isinstance(raw, dict) else ABI_VERSION
    if abi != ABI_VERSION:
        made = f"made by another version of goinfer (kernel ABI {abi!r:.20}, here {ABI_VERSION})"
        raise PlanError(f"section plan: {made}: prequant again")


def _check(plan: Plan) -> None:
    for s in plan.steps:
        if len(s.operands) > N_POINTERS or len(s.ints) > N_INTS or len(s.floats) > N_FLOATS:
            raise PlanError(f"section plan: step {s.name}: too many operands")
        if s.domain not in DOMAINS or s.row_tile < 1 or s.units < 1:
            raise PlanError(f"section plan: step {s.name}: bad tiling {s.domain}/{s.row_tile}/{s.units}")
