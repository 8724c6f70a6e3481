"""Barriers: the fewest that keep every dependent pair of steps apart, given where the arena put the buffers."""

from dataclasses import dataclass, replace

from goinfer.bundle_format.plan import Buffer, Step


@dataclass(frozen=True)
class Access:
    """Names that a step reads and writes: buffers, or state such as "kv:3" and "io:logits"."""

    reads: frozenset[str]
    writes: frozenset[str]


def place_barriers(steps: list[Step], accesses: list[Access], buffers: list[Buffer]) -> list[Step]:
    """Put a barrier after the last step before a conflict; greedy, hence minimal for a fixed order."""
    spans = {b.name: (b.row_offset, b.row_offset + b.row_bytes) for b in buffers}
    out = [replace(s, barrier=False) for s in steps]
    reads: set[str] = set()
    writes: set[str] = set()
    for i, access in enumerate(accesses):
        if (
            _touch(access.reads, writes, spans)
            or _touch(access.writes, writes, spans)
            or _touch(access.writes, reads, spans)
        ):
            out[i - 1] = replace(out[i - 1], barrier=True)
            reads.clear()
            writes.clear()
        reads |= access.reads
        writes |= access.writes
    return out


def _touch(a: frozenset[str], b: set[str], spans: dict[str, tuple[int, int]]) -> bool:
    """Whether any name of a shares memory with any name of b."""
    for x in a:
        for y in b:
            if x == y:
                return True
            if x in spans and y in spans and spans[x][0] < spans[y][1] and spans[y][0] < spans[x][1]:
                return True
    return False
