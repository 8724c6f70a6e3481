"""Comparing logits and hidden states with a reference: the numbers of a gate, and the bars they must meet.

Everything is computed in float64, in bands of rows, from sums of products: no matrix product is used, so that a gate
cannot agree with a bug by sharing it. A NaN or an infinity on either side fails every verdict.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.bundle_format.errors import GoinferError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

_BAND_BYTES = 64 << 20


class CompareError(GoinferError):
    """Two arrays cannot be compared: their shapes differ, or they are empty."""


@dataclass(frozen=True)
class Bars:
    """What a comparison must reach. `same_next` is a share of positions; L2 is |x - ref| / |ref| of one position."""

    same_next: float = 1.0
    cosine: float = 0.99999
    rel_l2: float = 1e-3


EXACT = Bars()
"""The bars of an f32 bundle against the float32 reference."""


@dataclass(frozen=True)
class Comparison:
    """One array against its reference, row by row (a row is a position).

    `worst_*` are over positions, each with the position it was seen at; `same_next` and `mean_kl` (nats, reference
    first) are None for hidden states. `least_gap` is the smallest distance of the reference's two best logits
    relative to the row's RMS: below the noise of the reference itself, "the same next token" says nothing.
    """

    what: str
    shape: tuple[int, ...]
    dtype: str
    positions: int
    finite: bool
    worst_cosine: float
    cosine_at: int
    worst_rel_l2: float
    rel_l2_at: int
    same_next: float | None = None
    mean_kl: float | None = None
    least_gap: float | None = None

    def failures(self, bars: Bars) -> list[str]:
        """One line for each bar that is missed; empty when all are met. Written so that NaN never passes."""
        out = []
        if not self.finite:
            out.append(f"{self.what}: NaN or infinity")
        if not self.worst_cosine >= bars.cosine:
            out.append(f"{self.what}: cosine {self.worst_cosine:.7f} at {self.cosine_at}, bar {bars.cosine}")
        if not self.worst_rel_l2 <= bars.rel_l2:
            out.append(f"{self.what}: relative L2 {self.worst_rel_l2:.3e} at {self.rel_l2_at}, bar {bars.rel_l2:.0e}")
        if self.same_next is not None and not self.same_next >= bars.same_next:
            out.append(f"{self.what}: same next token at {self.same_next:.2%} of positions, bar {bars.same_next:.0%}")
        return out

    def statement(self) -> str:
        """The numbers in one line, with what they were taken over."""
        shape = "x".join(str(n) for n in self.shape)
        parts = [f"{self.what} [{shape} {self.dtype}, {self.positions} positions]"]
        if self.same_next is not None:
            parts.append(f"same next {self.same_next:.2%}")
        parts.append(f"worst cosine {self.worst_cosine:.7f}")
        parts.append(f"worst relative L2 {self.worst_rel_l2:.2e}")
        if self.mean_kl is not None:
            parts.append(f"mean KL {self.mean_kl:.2e}")
        return ", ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """JSON form; a number that is not finite becomes its name, since JSON has none."""
        return {k: _json(v) for k, v in asdict(self).items()}


def _json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def compare_logits(found: F32, reference: F32, what: str = "logits") -> Comparison:
    """Logits [positions, vocab] against the reference's. Raises CompareError when the shapes differ."""
    return _compare(found, reference, what, logits=True)


def compare_rows(found: F32, reference: F32, what: str) -> Comparison:
    """Rows [positions, width] of anything else, say a hidden state."""
    return _compare(found, reference, what, logits=False)


def channel_rms(reference: F32) -> F32:
    """RMS of each channel of [positions, width] over the positions; a channel of zeros counts as 1."""
    wide = reference.astype(np.float64)
    rms = np.sqrt((wide * wide).mean(axis=0))
    return np.where(rms > 0, rms, 1.0).astype(np.float32)


def compare_hidden(found: F32, reference: F32) -> tuple[list[Comparison], list[Comparison]]:
    """Hidden states [layers + 2, positions, width]: each as it stands, and each divided by its channels' RMS.

    One channel can carry most of the energy of a row; the second list is what sees the others.
    """
    if found.ndim != 3 or found.shape != reference.shape:
        raise CompareError(f"hidden states: shape {found.shape}, the reference has {reference.shape}")
    plain, scaled = [], []
    for i, name in enumerate(hidden_names(len(reference))):
        plain.append(compare_rows(found[i], reference[i], f"hidden {name}"))
        rms = channel_rms(reference[i])
        scaled.append(compare_rows(found[i] / rms, reference[i] / rms, f"hidden {name} / channel RMS"))
    return plain, scaled


def hidden_names(count: int) -> list[str]:
    """Names of `count` hidden states: the embedding, each layer, the final norm."""
    return ["embedding", *(f"layer {i}" for i in range(count - 2)), "final norm"]


def _compare(found: F32, reference: F32, what: str, logits: bool) -> Comparison:
    if found.shape != reference.shape or found.ndim != 2 or not found.size:
        raise CompareError(f"{what}: shape {found.shape}, the reference has {reference.shape}")
    rows = [_row_figures(x, y, logits) for x, y in _bands(found, reference)]
    cosine, rel_l2, same, kl, gap = (np.concatenate(column) for column in zip(*rows, strict=True))
    finite = bool(np.isfinite(cosine).all() and np.isfinite(rel_l2).all())
    return Comparison(
        what, tuple(found.shape), str(found.dtype), len(found), finite,
        *_worst(cosine, np.argmin), *_worst(rel_l2, np.argmax),
        float(same.mean()) if logits else None,
        float(kl.mean()) if logits else None,
        float(gap.min()) if logits else None,
    )  # fmt: skip


def _bands(found: F32, reference: F32) -> Iterator[tuple[F64, F64]]:
    step = max(1, _BAND_BYTES // (8 * found.shape[1]))
    for start in range(0, len(found), step):
        band = slice(start, start + step)
        yield found[band].astype(np.float64), reference[band].astype(np.float64)


def _worst(values: F64, pick: Callable[[F64], Any]) -> tuple[float, int]:
    """The worst value and its position; a NaN is worse than anything."""
    bad = np.flatnonzero(np.isnan(values))
    at = int(bad[0]) if bad.size else int(pick(values))
    return float(values[at]), at


def _row_figures(x: F64, y: F64, logits: bool) -> tuple[F64, F64, F64, F64, F64]:
    """Cosine, relative L2, same next token, KL and gap of every row; zero rows agree with zero rows alone."""
    with np.errstate(all="ignore"):
        xx, yy, xy = (x * x).sum(axis=1), (y * y).sum(axis=1), (x * y).sum(axis=1)
        both_zero = (xx == 0) & (yy == 0)
        cosine = np.where(both_zero, 1.0, xy / np.sqrt(xx * yy))
        difference = x - y
        rel_l2 = np.where(both_zero, 0.0, np.sqrt((difference * difference).sum(axis=1) / yy))
        rel_l2 = np.where(np.isfinite(xx), rel_l2, np.nan)
        if not logits:
            nothing = np.zeros(len(x))
            return cosine, rel_l2, nothing, nothing, nothing
        same = (x.argmax(axis=1) == y.argmax(axis=1)) & np.isfinite(xx) & np.isfinite(yy)
        log_p, log_q = _log_softmax(y), _log_softmax(x)
        kl = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
        return cosine, rel_l2, same.astype(np.float64), kl, _gap(y, yy)


def _log_softmax(x: F64) -> F64:
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _gap(y: F64, yy: F64) -> F64:
    """Distance of the two best logits of each row over the row's RMS."""
    if y.shape[1] < 2:
        return np.full(len(y), np.inf)
    best = np.partition(y, -2, axis=1)[:, -2:]
    return np.asarray((best[:, 1] - best[:, 0]) / np.sqrt(yy / y.shape[1]))
