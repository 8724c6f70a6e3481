"""Arena planning: buffers that are never alive together share memory. Greedy by size, first fit; deterministic."""

from collections.abc import Mapping
from dataclasses import dataclass

from goinfer.bundle_format.plan import Buffer


@dataclass(frozen=True)
class Lifetime:
    """Bytes a row of a value takes and the first and last step that touch it (inclusive)."""

    row_bytes: int
    first: int
    last: int


def plan_arena(values: Mapping[str, Lifetime]) -> list[Buffer]:
    """Give every value bytes of a row such that values alive at one step are disjoint."""
    placed: list[tuple[Lifetime, Buffer]] = []
    for name, life in sorted(values.items(), key=lambda item: (-item[1].row_bytes, item[1].first, item[0])):
        busy = sorted(
            (b.row_offset, b.row_offset + b.row_bytes)
            for other, b in placed
            if not (other.last < life.first or life.last < other.first)
        )
        offset = 0
        for start, stop in busy:
            if offset + life.row_bytes <= start:
                break
            offset = max(offset, stop)
        placed.append((life, Buffer(name, life.row_bytes, offset)))
    return sorted((b for _, b in placed), key=lambda b: b.name)
