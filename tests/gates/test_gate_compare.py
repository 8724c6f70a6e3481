"""The numbers of a gate, on hand-made arrays. Each broken control here is what a weaker comparison lets through."""

import json

import numpy as np
import pytest

from goinfer.gates.compare import (
    EXACT,
    Bars,
    CompareError,
    channel_rms,
    compare_hidden,
    compare_logits,
    compare_rows,
)


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((7, 50)).astype(np.float32) * 3


def test_equal_arrays_pass_and_say_what_was_compared(logits: np.ndarray) -> None:
    figures = compare_logits(logits, logits)
    assert figures.failures(EXACT) == []
    assert figures.same_next == 1.0 and figures.worst_rel_l2 == 0.0 and figures.mean_kl == 0.0
    assert "[7x50 float32, 7 positions]" in figures.statement()


def test_halved_logits_fail_by_l2_though_their_cosine_is_one(logits: np.ndarray) -> None:
    figures = compare_logits(logits / 2, logits)
    assert figures.worst_cosine == pytest.approx(1.0) and figures.same_next == 1.0
    assert figures.worst_rel_l2 == pytest.approx(0.5)
    assert len(figures.failures(EXACT)) == 1


def test_one_bad_position_is_found_among_good_ones(logits: np.ndarray) -> None:
    found = logits.copy()
    found[4] = found[4][::-1]
    figures = compare_logits(found, logits)
    assert figures.rel_l2_at == 4 and figures.cosine_at == 4
    assert figures.same_next == pytest.approx(6 / 7)
    assert len(figures.failures(EXACT)) == 3


@pytest.mark.parametrize("side", ["found", "reference"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_fail_on_either_side(logits: np.ndarray, side: str, value: float) -> None:
    """Red before `_worst` looked for NaN first: argmax of an array with a NaN elsewhere picked a finite row."""
    spoilt = logits.copy()
    spoilt[3, 20] = value
    pair = (spoilt, logits) if side == "found" else (logits, spoilt)
    figures = compare_logits(*pair)
    assert not figures.finite
    assert figures.failures(EXACT) and figures.failures(Bars(same_next=0.0, cosine=-1.0, rel_l2=1e9))
    json.dumps(figures.as_dict(), allow_nan=False)


def test_nan_on_both_sides_fails_too(logits: np.ndarray) -> None:
    spoilt = logits.copy()
    spoilt[0, 0] = np.nan
    assert not compare_logits(spoilt, spoilt).finite
    assert compare_logits(spoilt, spoilt).failures(EXACT)


def test_zero_rows_agree_with_zero_rows_alone() -> None:
    zero, one = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert compare_rows(zero, zero, "x").failures(EXACT) == []
    assert compare_rows(one, zero, "x").failures(EXACT)
    assert compare_rows(zero, one, "x").failures(EXACT)


def test_shapes_must_agree(logits: np.ndarray) -> None:
    with pytest.raises(CompareError, match="shape"):
        compare_logits(logits[:, :-1], logits)
    with pytest.raises(CompareError):
        compare_logits(logits[:0], logits[:0])


def test_a_small_channel_is_seen_after_dividing_by_channel_rms() -> None:
    """One channel of a thousand times the energy hides every other one from a plain relative L2."""
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((3, 9, 16)).astype(np.float32)
    reference[..., 5] *= 10_000
    found = reference.copy()
    found[1, :, 2] *= 1.5
    plain, scaled = compare_hidden(found, reference)
    assert not any(c.failures(EXACT) for c in plain)
    assert [bool(c.failures(EXACT)) for c in scaled] == [False, True, False]
    assert scaled[1].what == "hidden layer 0 / channel RMS"


def test_channel_rms_of_a_silent_channel_is_one() -> None:
    assert channel_rms(np.zeros((4, 2), np.float32)).tolist() == [1.0, 1.0]


def test_mean_kl_is_in_nats_reference_first() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    found = np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    assert compare_logits(found, reference).mean_kl == pytest.approx(0.25 * np.log(2), abs=1e-6)


def test_least_gap_is_relative_to_the_rms() -> None:
    row = np.array([[3.0, 4.0, 0.0, 0.0]], np.float32)
    assert compare_logits(row, row).least_gap == pytest.approx(1 / 2.5)
