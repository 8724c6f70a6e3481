"""The polynomials of vecmath: stated errors, edges, and the same bits in vectors of every width and on every target.

Seen red with: the last coefficient of the exponential dropped; the low part of ln 2 left out of log; tanh clamped at 8.
"""

import math

import numpy as np
import pytest

from goinfer.codegen.vecmath import MAX_ULP
from tests.kernels import vecmath_kernel  # noqa: F401  (registers the kernel kind)
from tests.kernels.harness import RUNNABLE, Call, aligned, place, run

_erf = np.frompyfunc(math.erf, 1, 1)
EXACT = {
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.asarray(_erf(x), np.float64),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}
INF, NAN = math.inf, math.nan
EDGES = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (-INF, 0.0), (INF, INF), (NAN, NAN), (88.73, INF), (-104.0, 0.0), (1e-45, 1.0)],
    "exp_nonpositive": [(0.0, 1.0), (-0.0, 1.0), (-INF, 0.0), (NAN, NAN), (-3e38, 0.0), (-1e-45, 1.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (NAN, NAN), (-1.0, NAN), (-INF, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (9.02, 1.0), (1e-45, 1e-45)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN), (-3e38, 0.0), (30.0, 1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (3.92, 1.0), (-5.0, -1.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (NAN, NAN), (3e38, 3e38), (-200.0, 0.0)],
}


def apply(fn: str, x: np.ndarray, target: str, lanes: int = 8) -> np.ndarray:
    """The kernel's values; x is filled up to whole vectors."""
    filled = aligned((-(-len(x) // 16) * 16,), np.float32, -1.0)
    filled[: len(x)] = x
    out = aligned(filled.shape, np.float32)
    run(Call("test_vecmath", {"fn": fn, "lanes": lanes}, [filled, out], [len(filled)]), target)
    return out[: len(x)]


def sample(fn: str, step: int = 40009) -> np.ndarray:
    """Every step-th bit pattern, and normal values, that the function is for."""
    x = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    normal = np.random.default_rng(7).standard_normal(20000).astype(np.float32) * 4
    # where the argument reduction of exp goes from one integer to the next, with neighbours on both sides
    borders = ((np.arange(-250, 256) + 0.5) * math.log(2)).astype(np.float32)
    near = (borders.view(np.int32)[:, None] + np.arange(-3, 4)).astype(np.int32).view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], normal, near.reshape(-1)])
    keep = {"log": x > 0, "exp_nonpositive": x <= 0}.get(fn)
    return x if keep is None else x[keep]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("fn", MAX_ULP)
def test_errors_are_as_stated(target: str, fn: str) -> None:
    x = sample(fn)
    got = apply(fn, x, target).astype(np.float64)
    with np.errstate(all="ignore"):
        want = EXACT[fn](x.astype(np.float64))
        overflow = np.isinf(want.astype(np.float32))
    small = np.abs(want) < 2.0**-126
    assert np.abs(got[small] - want[small]).max(initial=0) < 2.0**-126
    assert (got[overflow] == np.copysign(INF, want[overflow])).all()
    plain = ~small & ~overflow
    ulp = np.ldexp(1.0, np.frexp(np.abs(want[plain]))[1] - 24)
    error = np.abs(got[plain] - want[plain]) / ulp
    assert error.max() <= MAX_ULP[fn], (error.max(), x[plain][error.argmax()])


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("fn", EDGES)
def test_edges(target: str, fn: str) -> None:
    x, want = (np.array(v, np.float32) for v in zip(*EDGES[fn], strict=True))
    got = apply(fn, x, target)
    for argument, a, b in zip(x, got, want, strict=True):
        same = np.isnan(a) if np.isnan(b) else a == b and np.signbit(a) == np.signbit(b)
        assert same, f"{fn}({argument}) is {a}, not {b}"


@pytest.mark.parametrize("fn", EDGES)
def test_a_value_has_the_same_bits_in_any_vector_and_on_any_target(fn: str) -> None:
    x = sample(fn, 400009)
    x = x[~np.isnan(x)]
    want = apply(fn, x, "x86-64-v3", 8).tobytes()
    for lanes in (0, 4, 16):
        assert apply(fn, x, "x86-64-v3", lanes).tobytes() == want, lanes
    assert apply(fn, place(x[::-1]), "x86-64-v3", 8)[::-1].tobytes() == want


@pytest.mark.parametrize("target", RUNNABLE[-1:])
@pytest.mark.parametrize("fn", EDGES)
def test_neon_gives_the_bits_of_avx2(target: str, fn: str) -> None:
    x = sample(fn, 400009)
    assert apply(fn, x, target, 4).tobytes() == apply(fn, x, "x86-64-v3", 8).tobytes()


def test_exp_nonpositive_is_exp() -> None:
    x = sample("exp_nonpositive")
    assert apply("exp_nonpositive", x, "x86-64-v3").tobytes() == apply("exp", x, "x86-64-v3").tobytes()
