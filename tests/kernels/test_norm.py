"""The norm kernel: plain, after a residual addition, after a normed one; to f32 and q8 rows.

Seen red with: the mean over the padded width; eps of the post norm taken for both; the sum not written back to x.
"""

import numpy as np
import pytest

from goinfer.codegen import reference
from goinfer.codegen.errors import CompileError
from tests.kernels.harness import RUNNABLE, Call, run
from tests.kernels.rows import (
    SPECIALS,
    WIDTHS,
    assert_quantised,
    empty_rows,
    f32_rows,
    f32_values,
    special,
    weight_vector,
)

EPS, POST_EPS = 1e-5, 3e-3
ADDS = ("none", "plain", "normed")


class Case:
    """Rows, deltas and weights of one call; `run` gives (x afterwards, out rows)."""

    def __init__(self, x: np.ndarray, add: str, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.values, self.add, self.k = x, add, x.shape[1]
        self.delta = rng.standard_normal(x.shape).astype(np.float32)
        self.weight, self.post = (rng.standard_normal(self.k).astype(np.float32) for _ in range(2))

    def run(
        self, target: str, out: str = "f32", splits: list[int] | None = None, norm: str = "rms"
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, k = self.values.shape
        x, delta, result = f32_rows(self.values), f32_rows(self.delta), empty_rows(rows, k, out)
        adding = self.add != "none"
        pointers = [x, weight_vector(self.weight), result, delta if adding else None, None, None]
        if self.add == "normed":
            pointers[4] = weight_vector(self.post)
        attrs = {"norm": norm, "add": self.add, "out": out, "domain": "rows"}
        ints = [k, x.strides[0], result.strides[0], delta.strides[0]]
        run(Call("norm", attrs, pointers, ints, [EPS, POST_EPS], rows=rows), target, splits)
        return x, result

    def check(self, target: str) -> None:
        x, out = self.run(target)
        with np.errstate(all="ignore"):
            total = self.expected_x(x)
            want = reference.rms(total, self.weight, EPS)
        got = f32_values(out, self.k)
        bad = ~np.isfinite(total).all(axis=1)
        assert np.isnan(got[bad]).any(axis=1).all()
        assert np.isfinite(got[~bad]).all()
        assert (np.abs(got - want)[~bad] <= 1e-6 * np.abs(want[~bad]) + 1e-37).all()

    def expected_x(self, x: np.ndarray) -> np.ndarray:
        """Check x after the call against the reference; returns it without padding."""
        if self.add == "none":
            assert x.tobytes() == f32_rows(self.values).tobytes()
            return self.values
        total = f32_values(x, self.k)
        if self.add == "plain":
            assert np.array_equal(total, self.values + self.delta, equal_nan=True)
            return total
        want = reference.residual(self.values, self.delta, self.post, POST_EPS)
        size = np.abs(self.values.astype(np.float64)) + np.abs(want)
        fine = np.isfinite(want)
        assert (np.abs(total - want)[fine] <= 1e-6 * size[fine] + 1e-37).all()
        return total


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize("k", WIDTHS)
def test_random_rows(target: str, add: str, k: int) -> None:
    Case(np.random.default_rng(k).standard_normal((3, k)).astype(np.float32), add, seed=k).check(target)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("add", ADDS)
def test_awkward_rows(target: str, add: str) -> None:
    """Each kind of row between ordinary ones: a NaN or an infinity stays in its row."""
    ordinary = np.random.default_rng(0).standard_normal(70).astype(np.float32)
    rows = np.stack([r for kind in SPECIALS for r in (special(kind, 70), ordinary)])
    Case(rows, add).check(target)
    case = Case(rows.copy(), add)
    case.values, case.delta = case.delta, case.values
    if add != "none":
        case.check(target)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("add", ADDS)
def test_q8_output_is_the_f32_output_quantised(target: str, add: str) -> None:
    case = Case(np.random.default_rng(3).standard_normal((4, 90)).astype(np.float32), add)
    case.values[2, 5] = np.nan
    _, plain = case.run(target)
    x, codes = case.run(target, out="q8")
    assert_quantised(codes, f32_values(plain, 90))
    assert x.tobytes() == case.run(target)[0].tobytes()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("add", ADDS)
def test_rows_alone_and_other_cuts_give_the_same_bytes(target: str, add: str) -> None:
    case = Case(np.random.default_rng(4).standard_normal((6, 200)).astype(np.float32), add)
    x, out = case.run(target)
    for a, b in zip((x, out), case.run(target, splits=[1, 5]), strict=True):
        assert a.tobytes() == b.tobytes()
    case.values, case.delta = case.values[3:4], case.delta[3:4]
    for a, b in zip((x, out), case.run(target), strict=True):
        assert a[3:4].tobytes() == b.tobytes()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("add", ["none", "plain"])
def test_without_a_norm_the_row_is_handed_on(target: str, add: str) -> None:
    case = Case(np.random.default_rng(5).standard_normal((2, 40)).astype(np.float32), add)
    _, out = case.run(target, norm="none")
    want = case.values if add == "none" else case.values + case.delta
    assert f32_values(out, 40).tobytes() == want.tobytes()


def test_unknown_attributes_are_refused() -> None:
    case = Case(np.ones((1, 32), np.float32), "twice")
    with pytest.raises(CompileError, match="add='twice'"):
        case.run("x86-64-v3")
