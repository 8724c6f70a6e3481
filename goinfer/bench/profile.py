"""Where the time of a forward goes: cycles of every step, from counters in the native loop, summed by kind of step.

The counters are thread 0's; waiting for other threads counts to the step that is waited for, and also apart. Steps have
bytes of weights to read and products to make, and so a floor: whichever of the two takes longer on this machine.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from goinfer.bundle_format.kernel_abi import PROFILE
from goinfer.bundle_format.plan import Step
from goinfer.runtime.engine import Engine

REPEATS = 3


@dataclass(frozen=True)
class Line:
    """One kind of step (its name without the layer): seconds of one forward, bytes of weights, int8 products.

    `waiting` are those of the seconds in which thread 0 had no more work and waited at the barrier.
    """

    name: str
    steps: int
    seconds: float
    bytes: int
    products: int
    waiting: float = 0.0

    def floor(self, read_gbs: float, dot_gmacs: float) -> float:
        """The least seconds that reading its weights or making its products takes."""
        return max(self.bytes / read_gbs, self.products / dot_gmacs) / 1e9


def profile(engine: Engine, work: Callable[[Callable[[], None]], float], forwards: int, rows: int) -> list[Line]:
    """Run `work` with the counters on, and keep the fastest run of REPEATS.

    It returns the seconds of its `forwards` forwards of `rows` rows, and calls what it is given right before the first.
    """
    counters = np.zeros(len(engine.plan.steps), PROFILE)
    work(lambda: None)  # warm
    engine._ctx["profile"] = counters.ctypes.data
    try:
        runs = [(work(lambda: counters.fill(0)), counters.copy()) for _ in range(REPEATS)]
    finally:
        engine._ctx["profile"] = 0
    seconds, counted = min(runs, key=lambda run: run[0])
    scale = seconds / max(1, int(counted["cycles"].sum())) / forwards
    return _lines(engine, counted["cycles"] * scale, counted["waiting"] * scale, rows)


def _lines(engine: Engine, seconds: np.ndarray, waiting: np.ndarray, rows: int) -> list[Line]:
    weights = {w.name: w for w in engine.plan.weights}
    matmuls = {k.symbol for k in engine.plan.kernels if k.kind == "matmul"}
    groups: dict[str, list[Any]] = defaultdict(lambda: [0, 0.0, 0, 0, 0.0])
    for step, spent, waited in zip(engine.plan.steps, seconds, waiting, strict=True):
        group = groups[_kind(step)]
        group[0] += 1
        group[1] += float(spent)
        group[4] += float(waited)
        if step.kernel in matmuls:
            weight = weights[step.operands[0].removeprefix("weight:")]
            group[2] += weight.nbytes
            group[3] += weight.n * weight.k * (rows if step.domain == "rows" else 1)
    return sorted((Line(name, *values) for name, values in groups.items()), key=lambda line: -line.seconds)


def _kind(step: Step) -> str:
    """blk.7.ffn_down -> ffn_down."""
    parts = step.name.split(".")
    return ".".join(parts[2:]) if parts[0] == "blk" else step.name


def table(title: str, lines: list[Line], read_gbs: float, dot_gmacs: float) -> list[list[str]]:
    """Rows of text: step, number, time, share of the forward, waiting in it, floor, share of the floor."""
    total = sum(line.seconds for line in lines)
    rows = [[title, "steps", "ms", "share", "waiting ms", "floor ms", "of floor"]]
    for line in lines:
        floor = line.floor(read_gbs, dot_gmacs)
        rows.append([
            line.name, str(line.steps), f"{1e3 * line.seconds:.3f}", f"{line.seconds / total:.0%}",
            f"{1e3 * line.waiting:.3f}",
            f"{1e3 * floor:.3f}" if floor else "", f"{floor / line.seconds:.0%}" if floor else "",
        ])  # fmt: skip
    waited = sum(line.waiting for line in lines)
    return [*rows, ["total", str(sum(line.steps for line in lines)), f"{1e3 * total:.3f}", "", f"{1e3 * waited:.3f}",
                    "", ""]]  # fmt: skip
