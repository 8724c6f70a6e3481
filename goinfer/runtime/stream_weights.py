"""Running a bundle whose weights do not fit in memory: layers are paged in ahead of use and dropped after it.

A forward walks the layers in order, so what is used next is known. As many layers as the budget allows stay resident;
the others are asked for one layer ahead (MADV_WILLNEED) and given back after use (MADV_DONTNEED), which for a
read-only file mapping costs nothing but reading them again. Results do not change: the same code reads the same bytes.
"""

import ctypes
import mmap
from dataclasses import dataclass

from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.plan import Plan
from goinfer.runtime.engine import Engine

_WILLNEED, _DONTNEED = 3, 4


@dataclass(frozen=True)
class _Span:
    """Pages of the weights section that one stretch of steps reads: address and length, page aligned."""

    start: int
    length: int


class WeightStreamer:
    """Keeps an engine's resident weights under a budget in bytes. Attach once, before the first forward.

    Raises UsageError when the budget cannot hold the two largest neighbouring layers (one in use, one coming).
    """

    def __init__(self, engine: Engine, budget: int):
        self._libc = ctypes.CDLL(None, use_errno=True)
        base = int(engine.weights.ctypes.data)
        self._stretches = [_spans(base, stretch) for stretch in _weights_by_stretch(engine.plan)]
        sizes = [sum(s.length for s in spans) for spans in self._stretches]
        window = max(a + b for a, b in zip(sizes, sizes[1:] + sizes[:1], strict=True))
        if budget < window:
            raise UsageError(
                f"--weight-cache: {budget / 1e9:.3f} GB is too small; this model needs at least {window / 1e9:.3f} GB"
            )
        self._pinned = _pinned(sizes, budget - window)
        self._last: int | None = None
        self._drop(range(len(self._stretches)))
        engine.before_layer = self._before

    def _before(self, index: int) -> None:
        """Stretch `index` is about to run: fetch the next one, drop the one before."""
        n = len(self._stretches)
        if self._last is not None and self._last != index and self._last not in self._pinned:
            self._drop([self._last])
        self._last = index
        for coming in (index, (index + 1) % n):
            if coming not in self._pinned:
                self._advise(self._stretches[coming], _WILLNEED)

    def _drop(self, indices: "range | list[int]") -> None:
        for i in indices:
            self._advise(self._stretches[i], _DONTNEED)

    def _advise(self, spans: list[_Span], advice: int) -> None:
        for s in spans:
            self._libc.madvise(ctypes.c_void_p(s.start), ctypes.c_size_t(s.length), advice)


def _pinned(sizes: list[int], room: int) -> frozenset[int]:
    """Stretches that stay: the access pattern is a cycle, so any that fit serve equally; take them in order."""
    kept = set()
    for i, size in enumerate(sizes):
        if size <= room:
            kept.add(i)
            room -= size
    return frozenset(kept)


def _weights_by_stretch(plan: Plan) -> list[list[tuple[int, int]]]:
    """(offset, bytes) of the weights each stretch of steps reads; a table only looked up in belongs to none."""
    weights = {w.name: (w.offset, w.nbytes) for w in plan.weights}
    out, begin = [], 0
    for end in [*plan.layer_ends, len(plan.steps)]:
        names: dict[str, None] = {}
        for step in plan.steps[begin:end]:
            if not step.kernel.startswith("embed"):
                names.update((o.removeprefix("weight:"), None) for o in step.operands if o.startswith("weight:"))
        out.append([weights[n] for n in names])
        begin = end
    return out


def _spans(base: int, weights: list[tuple[int, int]]) -> list[_Span]:
    """Whole pages covering the weights, merged where they touch."""
    page = mmap.PAGESIZE
    spans: list[_Span] = []
    for offset, n in sorted(weights):
        start = (base + offset) // page * page
        stop = -(-(base + offset + n) // page) * page
        if spans and start <= spans[-1].start + spans[-1].length:
            start = spans.pop().start
        spans.append(_Span(start, stop - start))
    return spans
