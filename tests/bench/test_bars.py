"""The numbers to reach: what counts as met, missed and not measured."""

import copy
import math
from typing import Any

import pytest

from goinfer.bench.bars import MET, MISSED, NOT_MEASURED, Outcome, judge, rows, summary


def row(ours: float, peers: dict[str, float] | None = None, share: float | None = None, n: int = 5) -> dict[str, Any]:
    samples = {name: [rate] * n for name, rate in {"goinfer": ours, **(peers or {})}.items()}
    return {"samples": samples, **({"share": {"of": "x", "samples": [share] * n}} if share is not None else {})}


def results() -> dict[str, Any]:
    """A run over the 0.5B shape in which every bar is met, each just so."""
    return {
        "threads": 2, "layers": 24, "hidden": 896, "vocabulary": 151936,
        "token": {"bytes": 300e6}, "bundle": {"weights": 300e6, "bytes": 300e6}, "source": {"bytes": 300e6},
        "peers": {"llama.cpp": {"bytes": 300e6, "type": "Q4_0"}, "openvino": {"bytes": 300e6, "type": "Q4_0"}},
        "tokens_per_second": {
            "prefill 512": row(230, {"llama.cpp": 100, "openvino": 164}, 0.60),
            "prefill 2048": row(184, {"llama.cpp": 100}),
            "decode at 16": row(116, {"llama.cpp": 100}, 0.85),
            "decode at 4096": row(115.1, {"llama.cpp": 100}, 0.5),
            "decode, batch of 1": row(1), "decode, batch of 8": row(4),
        },
        "seconds": {"start to first token": row(0.6, {"llama.cpp": 1.0}), "open and verify": row(0.06),
                    "prequant": row(2.0), "prequant, kernels too": row(22.0)},
        "memory": {"rss": 400e6, "kv": 20e6},
    }  # fmt: skip


def status(data: dict[str, Any], bar: str) -> Outcome:
    (found,) = [outcome for outcome in judge(data) if outcome.bar.startswith(bar)]
    return found


def test_every_bar_can_be_met() -> None:
    """Seen red with any one limit tightened in bars.py."""
    found = judge(results())
    assert len(found) == 13 and {o.status for o in found} == {MET}, [o for o in found if o.status != MET]
    assert summary(found) == "13 numbers to reach: 13 met, 0 missed, 0 not measured"


BREAKS: list[tuple[str, tuple[str, ...], Any]] = [
    ("prefill 512 / llama.cpp", ("tokens_per_second", "prefill 512"), row(229, {"llama.cpp": 100, "openvino": 160}, 1)),
    ("prefill 512 / OpenVINO", ("tokens_per_second", "prefill 512"), row(223, {"llama.cpp": 1, "openvino": 160}, 1)),
    ("prefill 512, share", ("tokens_per_second", "prefill 512"), row(300, {"llama.cpp": 1, "openvino": 1}, 0.59)),
    ("prefill 2048", ("tokens_per_second", "prefill 2048"), row(183)),
    ("decode at 16 /", ("tokens_per_second", "decode at 16"), row(114, {"llama.cpp": 100}, 0.89)),
    ("decode at 16, share", ("tokens_per_second", "decode at 16"), row(200, {"llama.cpp": 100}, 0.84)),
    ("decode at 4096", ("tokens_per_second", "decode at 4096"), row(114, {"llama.cpp": 100})),
    ("batch of 8", ("tokens_per_second", "decode, batch of 8"), row(3.9)),
    ("start", ("seconds", "start to first token"), row(0.61, {"llama.cpp": 1.0})),
    ("open", ("seconds", "open and verify"), row(0.0601)),
    ("resident", ("memory",), {"rss": 401e6, "kv": 20e6}),
    ("prequant", ("seconds", "prequant"), row(2.01)),
    ("kernels", ("seconds", "prequant, kernels too"), row(22.1)),
]


@pytest.mark.parametrize(("bar", "where", "value"), BREAKS, ids=[b[0] for b in BREAKS])
def test_every_bar_can_be_missed(bar: str, where: tuple[str, ...], value: Any) -> None:
    """Just below each limit. Seen red with the comparison in _judge turned round."""
    data = results()
    place = data
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    assert status(data, bar).status == MISSED


def test_decode_is_met_by_either_side_of_the_lesser() -> None:
    data = results()
    data["tokens_per_second"]["decode at 16"] = row(10, {"llama.cpp": 100}, 0.90)
    assert status(data, "decode at 16 /").status == MET
    data["peers"] = {}
    data["tokens_per_second"]["decode at 16"] = row(10, share=0.90)
    assert status(data, "decode at 16 /").status == MET, "90% of reading needs no peer"
    data["tokens_per_second"]["decode at 16"] = row(10, share=0.89)
    found = status(data, "decode at 16 /")
    assert found.status == NOT_MEASURED and "llama.cpp absent" in found.why


def test_what_is_missing_or_no_number_is_never_met() -> None:
    """Every leaf of the results in turn becomes NaN, then goes. Seen red without the finite check in _judge."""
    whole = results()
    for group, key in [(g, k) for g in ("tokens_per_second", "seconds") for k in whole[g]]:
        for arm in whole[group][key]["samples"]:
            data = copy.deepcopy(whole)
            data[group][key]["samples"][arm][2] = math.nan
            touched = [o for o in judge(data) if o.status != MET]
            assert all(o.status == NOT_MEASURED for o in touched), touched
        data = copy.deepcopy(whole)
        del data[group][key]
        touched = [o for o in judge(data) if o.status != MET]
        assert touched and all(o.status == NOT_MEASURED and o.why for o in touched)
    data = copy.deepcopy(whole)
    data["tokens_per_second"]["decode at 16"]["share"]["samples"] = [math.nan] * 5
    assert status(data, "decode at 16, share").status == NOT_MEASURED
    for key in whole:
        data = {k: v for k, v in whole.items() if k != key}
        touched = [o for o in judge(data) if o.status != MET]
        assert touched and all(o.status == NOT_MEASURED and o.why for o in touched), key
    data["memory"] = {}
    assert status(data, "resident").status == NOT_MEASURED


@pytest.mark.parametrize(
    ("bar", "change", "why"),
    [
        ("prefill 512 / llama.cpp", {"peers": {"llama.cpp": {"bytes": 3e8, "type": "Q4_1"}}}, "Q4_1: the bar is for"),
        ("prefill 512 / llama.cpp", {"peers": {}}, "llama.cpp absent"),
        ("decode at 4096", {"peers": {"llama.cpp": {"bytes": 4e8, "type": "Q8_0"}}}, "fewer bytes of weights"),
        ("decode at 16, share", {"token": {"bytes": 90e6}}, "90 MB: the bar is for 200 up"),
        ("batch of 8", {"layers": 30}, "0.5B shape"),
        ("open", {"bundle": {"bytes": 90e6, "weights": 90e6}}, "90 MB"),
        ("prequant", {"threads": 4}, "4 threads: the bars are for 2"),
    ],
)
def test_a_bar_says_why_it_was_not_measured(bar: str, change: dict[str, Any], why: str) -> None:
    found = status({**results(), **change}, bar)
    assert found.status == NOT_MEASURED and why in found.why


def test_few_rounds_are_shown_and_not_judged() -> None:
    data = results()
    data["tokens_per_second"]["prefill 2048"] = row(500, n=4)
    data["tokens_per_second"]["prefill 512"] = row(230, n=4)
    found = status(data, "prefill 2048")
    assert (found.status, found.value, found.why) == (NOT_MEASURED, "2.17", "4 rounds: a bar needs 5")
    assert [found.bar, ">= 0.80", "2.17", NOT_MEASURED, found.why] in rows([found])


def test_a_series_is_judged_by_its_line() -> None:
    sizes = [{"samples": {"decode at 16": [1.0] * 5}}] * 4
    fit = {"r_squared": 0.995, "largest_residual": -0.09}
    data = {"threads": 2, "scaling": {"sizes": sizes, "fit": fit}}
    assert [o.status for o in judge(data)] == [MET, MET]
    data["scaling"] = {"sizes": sizes, "fit": {"r_squared": 0.98, "largest_residual": -0.11}}
    assert [o.status for o in judge(data)] == [MISSED, MISSED], "a residual below the line counts like one above"
    data["scaling"] = {"sizes": sizes, "fit": {"r_squared": math.nan, "largest_residual": 0.0}}
    assert judge(data)[0].status == NOT_MEASURED
    data["scaling"] = {"sizes": sizes[:3], "fit": fit}
    assert {o.status for o in judge(data)} == {NOT_MEASURED}
