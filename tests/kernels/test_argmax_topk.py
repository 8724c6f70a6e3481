"""The greedy token and the k best of a row: ties, infinities, NaN, and padding that must not be looked at.

Seen red with: ties going to the highest index; padding columns taking part; a NaN seen in the first vector of a group
only.
"""

import math

import numpy as np
import pytest

from goinfer.codegen import reference
from tests.kernels.harness import RUNNABLE, Call, aligned, run
from tests.kernels.rows import f32_rows

SIZES = (1, 5, 32, 33, 1000, 4099)


def argmax(logits: np.ndarray, target: str, splits: list[int] | None = None) -> np.ndarray:
    """The kernel's token of each row."""
    x, out = f32_rows(logits), aligned((len(logits),), np.int32)
    x[:, logits.shape[1] :] = math.inf
    call = Call("argmax", {}, [x, out], [logits.shape[1], x.strides[0]], wanted=len(logits), domain="logits")
    run(call, target, splits)
    return out


def topk(logits: np.ndarray, k: int, target: str) -> tuple[np.ndarray, np.ndarray]:
    """The kernel's ids and values."""
    x = f32_rows(logits)
    x[:, logits.shape[1] :] = math.inf
    ids, values = aligned((len(logits), k), np.int32), aligned((len(logits), k), np.float32)
    ints = [logits.shape[1], x.strides[0], k]
    run(Call("topk", {}, [x, ids, values], ints, wanted=len(logits), domain="logits"), target)
    return ids, values


def logits_of(kind: str, vocab: int) -> np.ndarray:
    """Three rows of one kind."""
    rng = np.random.default_rng(vocab)
    x = rng.standard_normal((3, vocab)).astype(np.float32)
    if kind == "ties":
        x = np.round(x * 2)
    elif kind == "equal":
        x[:] = -7.25
    elif kind == "minus_infinity":
        x[:] = -np.inf
        x[1, vocab // 2] = -5
    elif kind == "infinity":
        x[:, vocab - 1] = np.inf
    elif kind == "zeros":
        x[:] = 0.0
        x[1, : vocab // 2] = -0.0
    elif kind == "ascending":
        x.sort(axis=1)
    elif kind == "nan":
        x[0, vocab - 1] = np.nan
        x[2, 0] = np.nan
    return x


KINDS = ("normal", "ties", "equal", "minus_infinity", "infinity", "zeros", "ascending", "nan")


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_argmax(target: str, kind: str) -> None:
    for vocab in SIZES:
        x = logits_of(kind, vocab)
        assert argmax(x, target).tolist() == reference.argmax(x).tolist(), vocab
    assert argmax(x, target, splits=[1, 2]).tolist() == reference.argmax(x).tolist()


@pytest.mark.parametrize("target", RUNNABLE)
def test_argmax_finds_the_largest_at_every_place(target: str) -> None:
    """One row for each place of 70 columns, so every lane and both ends of every vector."""
    x = np.tile(np.random.default_rng(0).standard_normal(70).astype(np.float32), (70, 1))
    x[np.arange(70), np.arange(70)] = 9
    assert argmax(x, target).tolist() == list(range(70))
    x[np.arange(70), np.arange(70)] = np.nan
    assert argmax(x, target).tolist() == [-1] * 70


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_topk(target: str, kind: str) -> None:
    for vocab in SIZES:
        x = logits_of(kind, vocab)
        for k in {1, min(7, vocab), min(256, vocab)}:
            ids, values = topk(x, k, target)
            want_ids, want_values = reference.topk(x, k)
            assert np.array_equal(ids, want_ids), (vocab, k)
            assert np.array_equal(values, want_values, equal_nan=True)
            assert np.array_equal(np.signbit(values), np.signbit(want_values)) or kind == "nan"
