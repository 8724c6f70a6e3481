"""The greedy head: the token that argmax finds in the logits of the matmul, for every format and target.

Seen red with: the panel's first index left off; `limit` one too high; a NaN taken for smaller than any number; ties
going to the later panel.
"""

import numpy as np
import pytest

from tests.kernels.harness import NATIVE_TARGETS, RUNNABLE, Call, aligned, run
from tests.kernels.test_matmul import FORMATS, case


def best_of(pairs: np.ndarray, target: str) -> np.ndarray:
    """The tokens of rows of (value, index) pairs."""
    tokens = aligned((len(pairs),), np.int32, -7)
    ints = [pairs.shape[1], pairs.strides[0]]
    run(Call("best_of", {}, [pairs, tokens], ints, wanted=len(pairs), domain="greedy"), target)
    return tokens


def greedy(call: Call, n: int, target: str) -> np.ndarray:
    """The tokens of the call's weights and rows, of the first n."""
    weights, xs, _ = call.pointers
    pairs = aligned((call.rows, call.units), [("value", np.float32), ("index", np.int32)], 0)
    head = Call(
        "matmul_best", {"format": call.attrs["format"], "bias": False, "domain": "rows"}, [weights, xs, pairs],
        [*call.ints[:2], pairs.strides[0], n], rows=call.rows, row_tile=48, units=call.units,
    )  # fmt: skip
    run(head, target, splits=[1])
    return best_of(pairs, target)


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("n", [1, 17, 32, 45])
def test_finds_what_argmax_finds(target: str, fmt: str, n: int) -> None:
    call, *_ = case(fmt, 48, 96, 15, seed=n)
    run(call, target)
    logits = call.pointers[2][:, :n]
    assert np.isfinite(logits).all()
    assert greedy(call, n, target).tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("target", RUNNABLE)
def test_ties_and_unusable_rows(target: str) -> None:
    rows = np.zeros((6, 3), [("value", np.float32), ("index", np.int32)])
    rows["index"] = [5, 20, 40]
    rows["value"] = [[1, 2, 2], [np.nan, 9, 1], [1, np.nan, 9], [np.inf, 0, 1], [-np.inf] * 3, [-3, -2, -4]]
    pairs = aligned(rows.shape, rows.dtype, 0)
    pairs[...] = rows
    assert best_of(pairs, target).tolist() == [20, -1, -1, -1, -1, 20]


@pytest.mark.parametrize("target", NATIVE_TARGETS)
def test_a_row_with_a_nan_has_no_token(target: str) -> None:
    call, *_ = case("f32", 48, 64, 3, seed=1)
    call.pointers[1][1, 3] = np.nan
    tokens = greedy(call, 48, target)
    assert tokens[1] == -1 and (tokens[[0, 2]] >= 0).all()
