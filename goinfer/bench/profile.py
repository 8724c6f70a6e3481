"""Where the time of a forward goes: ticks of every step, from counters in the native loop, summed by kind of step.

The counters are thread 0's; waiting for other threads counts to the step that is waited for, and also apart. What no
step accounts for (the call from Python, waking the workers, choosing the token) is a line of its own. Steps have bytes
to read and products to make, and so a floor: whichever of the two takes longer on this machine.
"""

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from goinfer.bench.work import work_of
from goinfer.bundle_format.errors import GoinferError
from goinfer.bundle_format.kernel_abi import DOMAINS, MATMUL_KINDS, PROFILE
from goinfer.bundle_format.plan import Step
from goinfer.codegen.driver import clock
from goinfer.codegen.errors import CompileError
from goinfer.codegen.host import compile_for_host
from goinfer.codegen.kernel import define_function
from goinfer.runtime.engine import Engine

REPEATS = 3

OUTSIDE = "outside of steps"


class NoClock(GoinferError):
    """The native loop cannot tell the time on this processor."""


@dataclass(frozen=True)
class Line:
    """One kind of step (its name without the layer): seconds of one forward, bytes from memory, int8 products.

    `waiting` are those of the seconds in which thread 0 had no more work and waited at the barrier.
    """

    name: str
    steps: int
    seconds: float
    bytes: int
    products: int
    waiting: float = 0.0

    def floor(self, read_gbs: float, dot_gmacs: float) -> float:
        """The least seconds that reading its bytes or making its products takes."""
        return max(self.bytes / read_gbs, self.products / dot_gmacs) / 1e9


def profile(
    engine: Engine, work: Callable[[Callable[[], None]], float], forwards: int, rows: int, position: float
) -> list[Line]:
    """Run `work` with the counters on, and keep the fastest run of REPEATS.

    It returns the seconds of its `forwards` forwards of `rows` rows, and calls what it is given right before the first.
    `position` is where the rows of one-row forwards are, on average: their attention reads what is before it.
    Raises NoClock where the processor has no counter that a program may read.
    """
    counters = np.zeros(len(engine.plan.steps), PROFILE)
    work(lambda: None)  # warm
    rate = _ticks_per_second()
    if rate == 0:
        raise NoClock("profile: this processor has no counter that a program may read")
    engine._ctx["profile"] = counters.ctypes.data
    try:
        runs = [(work(lambda: counters.fill(0)), counters.copy()) for _ in range(REPEATS)]
    finally:
        engine._ctx["profile"] = 0
    seconds, counted = min(runs, key=lambda run: run[0])
    scale = 1 / rate / forwards
    lines = _lines(engine, counted["ticks"] * scale, counted["waiting"] * scale, rows, position)
    rest = seconds / forwards - sum(line.seconds for line in lines)
    return [*lines, Line(OUTSIDE, 0, max(0.0, rest), 0, 0)]


@cache
def _ticks_per_second() -> float:
    """Rate of the native loop's clock, 0 where it has none. Raises CompileError where no target runs here."""

    def define(module: Any, _target: Any) -> None:
        define_function(module, "ticks", ("ptr",), lambda out: out.store(clock(), 8))

    code = compile_for_host(define)
    if code is None:
        raise CompileError("bench: this machine runs none of the CPU targets")
    read, ticks = code.function("ticks", ctypes.c_void_p), np.zeros(2, np.int64)

    def once() -> float:
        started = time.perf_counter()
        read(ticks[:1].ctypes.data)
        time.sleep(0.02)
        read(ticks[1:].ctypes.data)
        return int(ticks[1] - ticks[0]) / (time.perf_counter() - started)

    return max(once() for _ in range(10))  # losing the core in between only ever makes it lower


def _lines(engine: Engine, seconds: np.ndarray, waiting: np.ndarray, rows: int, position: float) -> list[Line]:
    weights = {w.name: w for w in engine.plan.weights}
    kinds = {k.symbol: k.kind for k in engine.plan.kernels}
    groups: dict[str, list[Any]] = defaultdict(lambda: [0, 0.0, 0, 0, 0.0])
    attention = ""
    for step, spent, waited in zip(engine.plan.steps, seconds, waiting, strict=True):
        if not engine._ctx["counts"][0, DOMAINS.index(step.domain)]:
            continue  # the last forward had nothing for it: one of the two ways to take the head
        name = _kind(step)
        group = groups[name]
        group[0] += 1
        group[1] += float(spent)
        group[4] += float(waited)
        if kinds.get(step.kernel) in MATMUL_KINDS:
            weight = weights[step.operands[0].removeprefix("weight:")]
            group[2] += weight.nbytes
            group[3] += weight.n * weight.k * (rows if step.domain == "rows" else 1)
        attention = name if step.domain == "att_tiles" else attention
    if rows == 1 and attention:
        groups[attention][2] = round(work_of(engine.plan, engine.kv).kv_bytes(position))
    return sorted((Line(name, *values) for name, values in groups.items()), key=lambda line: -line.seconds)


def _kind(step: Step) -> str:
    """blk.7.ffn_down -> ffn_down; the head is one kind, whichever way it is taken."""
    parts = step.name.removesuffix(".greedy").split(".")
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
            f"{1e3 * floor:.3f}" if floor else "", f"{floor / line.seconds:.0%}" if floor and line.seconds else "",
        ])  # fmt: skip
    waited = sum(line.waiting for line in lines)
    return [*rows, ["total", str(sum(line.steps for line in lines)), f"{1e3 * total:.3f}", "", f"{1e3 * waited:.3f}",
                    "", ""]]  # fmt: skip
