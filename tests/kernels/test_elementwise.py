"""Soft cap, add and scale in place. Seen red with: cap multiplied twice; y read at the stride of x."""

import numpy as np
import pytest

from goinfer.codegen import reference
from tests.kernels.harness import RUNNABLE, Call, run
from tests.kernels.rows import SPECIALS, WIDTHS, f32_rows, f32_values, special


def rows_of(k: int) -> np.ndarray:
    """Awkward rows and ordinary ones."""
    ordinary = np.random.default_rng(k).standard_normal((3, k)).astype(np.float32) * 20
    return np.concatenate([np.stack([special(kind, k) for kind in SPECIALS]), ordinary])


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("domain", ["rows", "wanted"])
@pytest.mark.parametrize("k", WIDTHS)
def test_softcap(target: str, domain: str, k: int) -> None:
    values, cap = rows_of(k), 30.0
    results = []
    for chunk, splits in ((64, None), (1024, None), (32, [1, 5])):
        x = f32_rows(values)
        counts = {"rows": len(x)} if domain == "rows" else {"wanted": len(x)}
        call = Call("softcap", {"domain": domain}, [x], [k, x.strides[0], 0, chunk], [cap], domain=domain,
                    units=-(-k // chunk), **counts)  # fmt: skip
        run(call, target, splits)
        results.append(f32_values(x, k).copy())
    got, want = results[0], reference.softcap(values, cap)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    fine = ~np.isnan(want)
    assert (np.abs(got - want)[fine] <= 4e-7 * np.abs(want)[fine] + 1e-43).all()
    assert np.array_equal(np.signbit(got)[fine], np.signbit(values)[fine])
    assert all(r.tobytes() == got.tobytes() for r in results)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("k", WIDTHS)
def test_add(target: str, k: int) -> None:
    values, other = rows_of(k), np.random.default_rng(1).standard_normal((11, k)).astype(np.float32)
    x = f32_rows(values)
    wide = np.zeros((11, k + 40), np.float32)
    wide[:, :k] = other
    y = f32_rows(wide)
    run(Call("add", {"domain": "rows"}, [x, y], [k, x.strides[0], y.strides[0]], rows=11), target, splits=[4])
    assert np.array_equal(f32_values(x, k), values + other, equal_nan=True)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("k", WIDTHS)
def test_scale(target: str, k: int) -> None:
    values = rows_of(k)
    x = f32_rows(values)
    run(Call("scale", {"domain": "wanted"}, [x], [k, x.strides[0]], [0.37], wanted=11, domain="wanted"), target)
    assert np.array_equal(f32_values(x, k), values * np.float32(0.37), equal_nan=True)
