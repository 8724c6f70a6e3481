"""How speed goes with size: models of several shapes with random weights, one at a time, and a line through them.

A decoded token must read its weights, so its time should be a straight line over its bytes: the slope is a rate of
reading, and what is left at 0 bytes is everything else. The machine's reading is measured again in every round, so a
drift between sizes shows.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from goinfer.bench import ceilings
from goinfer.bench.arms import GoinferArm
from goinfer.bench.bars import Data, Outcome, judge, rows, summary
from goinfer.bench.models import compiled, synthetic
from goinfer.bench.place import place
from goinfer.bench.report import columns, spread
from goinfer.bench.rounds import Spread, interleave
from goinfer.bench.shares import DOTS, READING, STEPS, shares
from goinfer.bench.synthetic import shape_named
from goinfer.bench.work import work_of
from goinfer.bundle_format.errors import UsageError
from goinfer.codegen.host import runs_here
from goinfer.codegen.target import TARGETS, target_named

Say = Callable[[str], None]

CONTEXT, ROWS = 16, 512
DECODE, PREFILL = f"decode at {CONTEXT}", f"prefill {ROWS}"


@dataclass(frozen=True)
class Fit:
    """seconds = intercept + bytes / (slope in GB/s), by least squares; the largest residual is relative and signed."""

    gb_per_s: float
    intercept_ms: float
    r_squared: float
    largest_residual: float
    at: str


def fit_line(names: Sequence[str], sizes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The line through (bytes, seconds) of at least two different sizes."""
    x, y = np.array(sizes, float), np.array(seconds, float)
    slope, intercept = np.polyfit(x, y, 1)
    rest = y - (slope * x + intercept)
    total = float(((y - y.mean()) ** 2).sum())
    r_squared = 1 - float((rest**2).sum()) / total if total else float("nan")
    worst = int(np.argmax(np.abs(rest / y)))
    rate = 1e-9 / float(slope) if slope > 0 else float("nan")
    return Fit(rate, 1e3 * float(intercept), r_squared, float(rest[worst] / y[worst]), names[worst])


def run(names: Sequence[str], threads: int, rounds: int, target: str | None, say: Say) -> Data:
    """Measure every shape; files are deleted as soon as they have been used. Results as in a results file."""
    for name in names:
        shape_named(name)
    if len(set(names)) < 2:
        raise UsageError("--sizes: a line needs two shapes or more: for example 135m,0.5b,1b,3b")
    chosen = target_named(target) if target else _best_target()
    say("ceilings of the machine")
    meter = ceilings.Meter(ceilings.Ceilings(chosen), threads, ceilings.STREAM_BYTES)
    sizes = [_measure(name, threads, rounds, chosen.name, meter, say) for name in names]
    fit = fit_line(names, [s["bytes"] for s in sizes], [1 / s["rates"][DECODE]["median"] for s in sizes])
    found: Data = {
        **place(), "target": chosen.name, "threads": threads, "rounds": rounds, "ceilings": meter.as_dict(),
        "scaling": {"sizes": sizes, "fit": asdict(fit)},
    }  # fmt: skip
    return {**found, "bars": [asdict(outcome) for outcome in judge(found)]}


def _best_target() -> Any:
    usable = [target for target in TARGETS.values() if runs_here(target)]
    if not usable:
        raise UsageError("--sizes: this machine runs none of the CPU targets")
    return max(usable, key=lambda target: target.baseline)


def _measure(name: str, threads: int, rounds: int, target: str, meter: ceilings.Meter, say: Say) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="goinfer-bench-") as folder:
        source = synthetic(Path(folder), name, say)
        bundle = compiled(source, Path(folder), say, [target])
        source.unlink()
        arm = GoinferArm(bundle, threads, ROWS, target=target)
        try:
            say(f"{name}: {rounds} rounds")
            return {"name": name, **_rounds(arm, rounds, meter)}
        finally:
            arm.close()


def _rounds(arm: GoinferArm, rounds: int, meter: ceilings.Meter) -> dict[str, Any]:
    ids = [100 + i % 100 for i in range(ROWS)]
    arm.hold(ids[:CONTEXT])
    arms: dict[str, Callable[[], float]] = {
        READING: meter.read, DECODE: partial(_decode, arm), DOTS: meter.dots, PREFILL: lambda: ROWS / arm.prefill(ids)
    }  # fmt: skip
    samples = interleave(arms, rounds)
    arm.release()
    work = work_of(arm.model.engine.plan, arm.model.engine.kv)
    out: dict[str, Any] = {
        "bytes": round(work.bytes_at(CONTEXT + 1 + (STEPS - 1) / 2)), "products": work.row_products,
        "samples": {n: [float(f"{v:.5g}") for v in taken] for n, taken in samples.items()},
        "rates": {n: Spread.of(taken).as_dict() for n, taken in samples.items()}, "shares": {},
    }  # fmt: skip
    for n, ceiling in ((DECODE, READING), (PREFILL, DOTS)):
        taken = shares(work, n, samples[n], samples[ceiling])
        if taken is not None:
            out["shares"][n] = {"of": taken[0], **Spread.of(taken[1]).as_dict()}
    return out


def _decode(arm: GoinferArm) -> float:
    """Tokens a second."""
    return STEPS / arm.decode(STEPS)


def text(found: Data) -> str:
    """The table, the line and the bars, from `run` or a results file."""
    table = [["shape", "MB a token", "decode tok/s", "ms", "line ms", "of reading", "reading GB/s", "prefill 512 tok/s",
              "of dot products"]]  # fmt: skip
    fit = Fit(**found["scaling"]["fit"])
    for size in found["scaling"]["sizes"]:
        on_line = fit.intercept_ms + size["bytes"] / fit.gb_per_s / 1e6
        table.append([
            size["name"], f"{size['bytes'] / 1e6:.1f}", spread(size["rates"][DECODE]),
            f"{1e3 / size['rates'][DECODE]['median']:.2f}", f"{on_line:.2f}",
            f"{size['shares'][DECODE]['median']:.0%}", spread(size["rates"][READING]),
            spread(size["rates"][PREFILL]), f"{size['shares'][PREFILL]['median']:.0%}",
        ])  # fmt: skip
    head = f"{found['target']}, {found['threads']} threads, {found['rounds']} rounds: median (least..largest)"
    outcomes = [Outcome(**outcome) for outcome in found["bars"]]
    bars = [*columns(rows(outcomes)), summary(outcomes)]
    return "\n".join([head, "", *columns(table), "", line_text(fit), drift_text(found), "", *bars])


def drift_text(found: Data) -> str:
    """How much the machine's own reading differed between the sizes, which were measured one after another."""
    reading = [size["rates"][READING]["median"] for size in found["scaling"]["sizes"]]
    return f"the machine's reading differed by {max(reading) / min(reading) - 1:.0%} between the sizes"


def line_text(fit: Fit) -> str:
    """The line in words."""
    return (
        f"time of a token = {fit.intercept_ms:.2f} ms + bytes / {fit.gb_per_s:.1f} GB/s; R^2 {fit.r_squared:.4f};"
        f" largest distance {fit.largest_residual:+.1%} at {fit.at}"
    )
