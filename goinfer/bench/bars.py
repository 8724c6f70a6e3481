"""The numbers to reach, as data, and what a run's results say about each: met, missed, or not measured and why.

A bar is judged on the results as they are in a results file, so a file can be judged again. Medians of at least
PAIRS pairs and THREADS threads count; with fewer a value is shown but not judged. What is missing or no number is
never met.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Data = dict[str, Any]
"""Results as in a results file."""

PAIRS = 5
THREADS = 2
MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"

LARGE = 200e6
"""Bytes of weights a token reads from which on a model counts as large."""

_OURS, _LLAMA, _OPENVINO = "goinfer", "llama.cpp", "openvino"
_HALF_B = {"layers": 24, "hidden": 896, "vocabulary": 151936}


class NotMeasured(Exception):
    """Why a bar cannot be judged on these results."""


@dataclass(frozen=True)
class Value:
    """A measured number, and how many pairs or rounds it is the median of (None: it is a single fact)."""

    number: float
    pairs: int | None = None


@dataclass(frozen=True)
class Bar:
    """One number to reach. `value` raises NotMeasured where the bar is for other models, or something is absent."""

    name: str
    limit: float
    value: Callable[[Data], Value]
    form: str = "{:.2f}"
    at_most: bool = False
    pairs: int = PAIRS

    @property
    def required(self) -> str:
        """The limit as text."""
        return f"{'<=' if self.at_most else '>='} {self.form.format(self.limit)}"


@dataclass(frozen=True)
class Outcome:
    """What results say about a bar. `value` is text, "" where there is none; `why` explains what was not measured."""

    bar: str
    required: str
    status: str
    value: str
    why: str = ""


def judge(data: Data) -> list[Outcome]:
    """All bars on the results of a run or of a series over sizes."""
    return [_judge(bar, data) for bar in (SCALING if "scaling" in data else BARS)]


def _judge(bar: Bar, data: Data) -> Outcome:
    try:
        value = bar.value(data)
    except NotMeasured as reason:
        return Outcome(bar.name, bar.required, NOT_MEASURED, "", str(reason))
    except KeyError as missing:
        return Outcome(bar.name, bar.required, NOT_MEASURED, "", f"the results have no {missing}")
    if not math.isfinite(value.number):
        return Outcome(bar.name, bar.required, NOT_MEASURED, "", "the measured value is no number")
    text = bar.form.format(value.number)
    why = _too_few(bar, data, value)
    if why:
        return Outcome(bar.name, bar.required, NOT_MEASURED, text, why)
    good = value.number <= bar.limit if bar.at_most else value.number >= bar.limit
    return Outcome(bar.name, bar.required, MET if good else MISSED, text)


def _too_few(bar: Bar, data: Data, value: Value) -> str:
    if value.pairs is not None and value.pairs < bar.pairs:
        return f"{value.pairs} round{'s' * (value.pairs != 1)}: a bar needs {bar.pairs}"
    if data.get("threads") != THREADS:
        return f"{data.get('threads')} threads: the bars are for {THREADS}"
    return ""


def _rates(data: Data, work: str) -> Data:
    found: Data | None = data.get("tokens_per_second", {}).get(work)
    if found is None:
        raise NotMeasured(f"{work} was not run")
    return found


def _samples(row: Data, arm: str) -> list[float]:
    values: list[float] = row["samples"].get(arm) or []
    if not values:
        raise NotMeasured(f"{arm} absent" if arm != _OURS else "no rounds")
    return values


def _median(values: Sequence[float]) -> Value:
    """NaN among the values makes the median one."""
    if any(math.isnan(v) for v in values):
        return Value(math.nan, len(values))
    return Value(statistics.median(values), len(values))


def _pairwise(ours: Sequence[float], other: Sequence[float]) -> Value:
    return _median([a / b if b else math.nan for a, b in zip(ours, other, strict=True)])


def _against(data: Data, work: str, peer: str) -> Value:
    row = _rates(data, work)
    return _pairwise(_samples(row, _OURS), _samples(row, peer))


def _share(data: Data, work: str) -> Value:
    """Median share of the ceiling of a row."""
    share = _rates(data, work).get("share")
    if not share:
        raise NotMeasured(f"{work} has no ceiling")
    return _median(share["samples"])


def _same_bytes(data: Data) -> None:
    """Raise where llama.cpp read noticeably more bytes of weights than we did."""
    peer = data["peers"].get(_LLAMA)
    if peer is None:
        raise NotMeasured(f"{_LLAMA} absent")
    if data["bundle"]["weights"] < 0.9 * peer["bytes"]:
        raise NotMeasured("the bundle holds fewer bytes of weights than the peer's file")


def _decode_16(data: Data) -> Value:
    """The ratio to llama.cpp over 1.15, or the share of reading over 90%, whichever is better: at least 1 is met."""
    share = _share(data, "decode at 16")
    by_reading = Value(share.number / 0.90, share.pairs)
    if by_reading.number >= 1:
        return by_reading
    ratio = _equal_bytes(data, "decode at 16")
    by_ratio = Value(ratio.number / 1.15, ratio.pairs)
    return by_reading if by_reading.number > by_ratio.number else by_ratio  # by_ratio too where one is no number


def _equal_bytes(data: Data, work: str) -> Value:
    _same_bytes(data)
    return _against(data, work, _LLAMA)


def _large_share(data: Data) -> Value:
    if data["token"]["bytes"] < LARGE:
        raise NotMeasured(f"a token reads {data['token']['bytes'] / 1e6:.0f} MB: the bar is for {LARGE / 1e6:.0f} up")
    return _share(data, "decode at 16")


def _prefill_llama(data: Data) -> Value:
    peer = data["peers"].get(_LLAMA)
    if peer is None:
        raise NotMeasured(f"{_LLAMA} absent")
    if peer["type"] != "Q4_0":
        raise NotMeasured(f"{_LLAMA} reads {peer['type'] or 'another type'}: the bar is for Q4_0 (--requantise q4_0)")
    return _against(data, "prefill 512", _LLAMA)


def _half_b(data: Data) -> None:
    if any(data.get(name) != size for name, size in _HALF_B.items()):
        raise NotMeasured("the bar is for the 0.5B shape (--synthetic 0.5b)")


def _prefill_share(data: Data) -> Value:
    _half_b(data)
    return _share(data, "prefill 512")


def _long_prefill(data: Data) -> Value:
    long, short = (_samples(_rates(data, f"prefill {n}"), _OURS) for n in (2048, 512))
    return _pairwise(long, short)


def _batch_8(data: Data) -> Value:
    _half_b(data)
    eight, one = (_samples(_rates(data, f"decode, batch of {n}"), _OURS) for n in (8, 1))
    return _pairwise(eight, one)


def _seconds(data: Data, work: str) -> Data:
    found: Data | None = data.get("seconds", {}).get(work)
    if found is None:
        raise NotMeasured(f"{work} was not run")
    return found


def _start(data: Data) -> Value:
    row = _seconds(data, "start to first token")
    return _pairwise(_samples(row, _OURS), _samples(row, _LLAMA))


def _opening(data: Data) -> Value:
    """Milliseconds for 300 MB, by proportion."""
    size = data["bundle"]["bytes"]
    if size < 250e6:
        raise NotMeasured(f"a bundle of {size / 1e6:.0f} MB: the bar is for 300 and is scaled from 250 up")
    median = _median(_samples(_seconds(data, "open and verify"), _OURS))
    return Value(1e3 * median.number * 300e6 / size, median.pairs)


def _resident(data: Data) -> Value:
    """MB beyond the weights that a token reads and the KV cache."""
    memory = data.get("memory") or {}
    if not memory:
        raise NotMeasured("memory was not measured")
    return Value((memory["rss"] - data["token"]["bytes"] - memory["kv"]) / 1e6)


def _prequant(data: Data) -> Value:
    """MB of source a second."""
    row = _seconds(data, "prequant")
    return _median([data["source"]["bytes"] / 1e6 / s if s else math.nan for s in _samples(row, _OURS)])


def _kernels(data: Data) -> Value:
    """Seconds that a run without compiled kernels takes longer."""
    cold = _median(_samples(_seconds(data, "prequant, kernels too"), _OURS))
    return Value(cold.number - _median(_samples(_seconds(data, "prequant"), _OURS)).number, cold.pairs)


BARS = (
    Bar("decode at 16 / the lesser of 1.15 llama.cpp and 90% of reading", 1.0, _decode_16),
    Bar("decode at 4096 / llama.cpp, equal bytes", 1.15, lambda d: _equal_bytes(d, "decode at 4096")),
    Bar("decode at 16, share of reading, over 200 MB", 0.85, _large_share, "{:.0%}"),
    Bar("prefill 512 / llama.cpp on Q4_0", 2.3, _prefill_llama),
    Bar("prefill 512 / OpenVINO GenAI", 1.4, lambda d: _against(d, "prefill 512", _OPENVINO)),
    Bar("prefill 512, share of dot products, 0.5B shape", 0.60, _prefill_share, "{:.0%}"),
    Bar("prefill 2048 / prefill 512", 0.80, _long_prefill),
    Bar("batch of 8 / one sequence, 0.5B shape", 4.0, _batch_8),
    Bar("start to first token / llama-cpp-python", 0.6, _start, at_most=True),
    Bar("open and verify 300 MB, ms", 60, _opening, "{:.0f}", at_most=True),
    Bar("resident beyond weights read and KV, MB", 80, _resident, "{:.0f}", at_most=True),
    Bar("prequant, MB of source a second", 150, _prequant, "{:.0f}"),
    Bar("kernels of all targets, first time, s", 20, _kernels, "{:.1f}", at_most=True, pairs=1),
)
"""What a run over one model is judged by."""


def _fit(name: str) -> Callable[[Data], Value]:
    def value(data: Data) -> Value:
        fit = data["scaling"].get("fit")
        if fit is None or len(data["scaling"]["sizes"]) < 4:
            raise NotMeasured("the bar is for four sizes")
        return Value(abs(fit[name]), min(len(size["samples"]["decode at 16"]) for size in data["scaling"]["sizes"]))

    return value


SCALING = (
    Bar("time of a token over its bytes, R^2 of a line", 0.99, _fit("r_squared"), "{:.4f}", pairs=3),
    Bar("largest distance from the line", 0.10, _fit("largest_residual"), "{:.1%}", at_most=True, pairs=3),
)
"""What a series over sizes is judged by: "a straight line" is taken to mean these two."""


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The outcomes as cells of a table."""
    table = [["number to reach", "required", "measured", "", ""]]
    return table + [[o.bar, o.required, o.value, o.status, o.why] for o in outcomes]


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many are met, missed and not measured."""
    count = {status: sum(o.status == status for o in outcomes) for status in (MET, MISSED, NOT_MEASURED)}
    return f"{len(outcomes)} numbers to reach: {', '.join(f'{n} {status}' for status, n in count.items())}"
