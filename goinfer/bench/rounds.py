"""Interleaved rounds: every arm is measured in turn, so that what changes on the machine changes for all of them."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WARM_UPS = 1
"""Rounds that are run and thrown away: caches, page tables and clocks settle."""


PAUSE = 0.02
"""Seconds before every measurement: threads of the arm before it may spin for a while when their work is done."""


@dataclass(frozen=True)
class Spread:
    """Median, least and largest of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one number."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 1) -> str:
        """`median (low..high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}..{self.high:.{digits}f})"

    def as_dict(self) -> dict[str, float]:
        """Rounded for a results file."""
        return {name: float(f"{value:.5g}") for name, value in vars(self).items()}


Samples = dict[str, list[float]]
"""Arm -> one number a round."""


def interleave(arms: Mapping[str, Callable[[], float]], rounds: int, warm_ups: int = WARM_UPS) -> Samples:
    """`rounds` numbers of every arm, taken A B C, A B C, ... after the warm-up rounds."""
    taken: Samples = {name: [] for name in arms}
    for i in range(warm_ups + rounds):
        for name, measure in arms.items():
            time.sleep(PAUSE)
            value = measure()
            if i >= warm_ups:
                taken[name].append(value)
    return taken


def ratios(samples: Samples, first: str, other: str) -> Spread:
    """first / other, pair by pair."""
    return Spread.of([a / b for a, b in zip(samples[first], samples[other], strict=True)])


def as_dict(samples: Samples, first: str) -> dict[str, Any]:
    """Spreads of all arms, and the ratio of `first` to each other one."""
    return {
        "rates": {name: Spread.of(values).as_dict() for name, values in samples.items()},
        "ratios": {name: ratios(samples, first, name).as_dict() for name in samples if name != first},
        "samples": {name: [float(f"{v:.5g}") for v in values] for name, values in samples.items()},
    }
