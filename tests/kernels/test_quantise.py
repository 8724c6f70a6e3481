"""The quantise kernel against the reference and against what the compiler's formats define, bit for bit.

Seen red with: the factor multiplied in by fma with the rounding constant; sums taken before the mask of a NaN group;
the scale computed as absmax * (1/127).
"""

import numpy as np
import pytest

from goinfer.codegen import reference
from goinfer.compiler.quant.formats import quantise_activations
from tests.kernels.harness import RUNNABLE, Call, run
from tests.kernels.rows import SPECIALS, WIDTHS, assert_quantised, empty_rows, f32_rows, q8_parts, special


def quantised(values: np.ndarray, target: str, splits: list[int] | None = None, domain: str = "rows") -> np.ndarray:
    """The kernel's q8 rows."""
    rows, k = values.shape
    x, out = f32_rows(values), empty_rows(rows, k, "q8")
    ints = [k, x.strides[0], out.strides[0]]
    run(Call("quantise", {"domain": domain}, [x, out], ints, rows=rows, wanted=rows, domain=domain), target, splits)
    return out


def normal(rows: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, k)) * np.exp(rng.standard_normal((rows, 1)) * 3)).astype(np.float32)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("k", WIDTHS)
def test_random_rows(target: str, k: int) -> None:
    values = normal(5, k, seed=k)
    assert_quantised(quantised(values, target), values)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", SPECIALS)
@pytest.mark.parametrize("k", [33, 96])
def test_awkward_rows(target: str, kind: str, k: int) -> None:
    values = np.stack([normal(1, k)[0], special(kind, k), normal(1, k, seed=1)[0]])
    assert_quantised(quantised(values, target), values)


@pytest.mark.parametrize("target", RUNNABLE)
def test_ties_go_to_even(target: str) -> None:
    """127 as the largest value makes the factor 1, so every half is a tie."""
    values = (np.arange(64, dtype=np.float32) - 31.5)[None, :].copy()
    values[0, 31], values[0, 63] = 127, -127
    codes = q8_parts(quantised(values, target), 64)[0]
    assert np.array_equal(codes[0], np.rint(values[0]).astype(np.int8))
    assert codes[0, 32] == 0 and codes[0, 33] == 2 and codes[0, 30] == -2


@pytest.mark.parametrize("target", RUNNABLE)
def test_the_product_is_rounded_before_it_becomes_an_integer(target: str) -> None:
    """Values whose product rounds to a half that it is not: a fused multiply and add gives another code for them."""
    x = np.random.default_rng(0).uniform(100, 127, (60000, 32)).astype(np.float32)
    x[:, 0] = np.random.default_rng(1).uniform(127.5, 250, 60000)
    factor = np.float32(127) / x[:, :1]
    fused = np.rint(x.astype(np.float64) * factor)
    values = x[(fused != np.rint(x * factor)).any(axis=1)]
    assert len(values) >= 3, "no such value among these, so this test sees nothing"
    assert_quantised(quantised(values, target), values)


@pytest.mark.parametrize("target", RUNNABLE)
def test_a_nan_or_an_infinity_reaches_the_scale_and_no_other_group(target: str) -> None:
    values = normal(1, 96)
    for bad in (np.nan, np.inf, -np.inf):
        values[0, 40] = bad
        codes, scales, sums = q8_parts(quantised(values, target), 96)
        assert not codes[0, 32:64].any() and sums[0, 1] == 0
        assert np.isnan(scales[0, 1]) if np.isnan(bad) else scales[0, 1] == np.inf
        assert np.isfinite(scales[0, [0, 2]]).all() and codes[0, :32].any() and codes[0, 64:].any()


@pytest.mark.parametrize("target", RUNNABLE)
def test_rows_alone_and_other_cuts_give_the_same_bytes(target: str) -> None:
    values = normal(7, 100)
    together = quantised(values, target)
    assert quantised(values, target, splits=[1, 2, 6], domain="wanted").tobytes() == together.tobytes()
    assert quantised(values[4:5], target).tobytes() == together[4:5].tobytes()


def test_the_reference_is_what_the_formats_define() -> None:
    """Two definitions of the same numbers: the kernel's reference and the compiler's."""
    rows = [special(kind, 100) for kind in SPECIALS] + list(normal(20, 100))
    for ours, theirs in zip(reference.quantise(np.stack(rows)), quantise_activations(np.stack(rows)), strict=True):
        assert np.array_equal(ours, theirs, equal_nan=True)
