"""Where the coefficients in goinfer/codegen/vecmath.py come from: weighted minimax fits, printed as float32.

Run `python -m tests.kernels.fit_vecmath`. Lawson's method: least squares whose weights grow where the error is
largest, so that the largest weighted error shrinks. Functions are evaluated in float64 from series that do not cancel.
"""

import math

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def minimax(x: F64, y: F64, weight: F64, degree: int, rounds: int = 400) -> F64:
    """Coefficients (constant first) of the polynomial that minimises max |weight * (p(x) - y)|."""
    powers = np.vander(x, degree + 1, increasing=True)
    scale = np.abs(powers).max(axis=0)
    lawson = np.full(len(x), 1.0 / len(x))
    for _ in range(rounds):
        root = weight * np.sqrt(lawson)
        c, *_ = np.linalg.lstsq(powers / scale * root[:, None], y * root, rcond=None)
        error = np.abs(weight * (powers @ (c / scale) - y))
        lawson *= error + 1e-30
        lawson /= lawson.sum()
    return np.asarray(c / scale, np.float64)


def points(low: float, high: float, n: int = 3000) -> F64:
    """Chebyshev points of an interval."""
    return (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(n) + 0.5) / n)


def series(x: F64, terms: list[float]) -> F64:
    """sum terms[i] * x**i."""
    return np.polynomial.polynomial.polyval(x, terms)


def fit_exp() -> tuple[F64, float]:
    """q in exp(r) = 1 + r + r^2 q(r) for |r| <= ln2 / 2; relative error."""
    r = points(-math.log(2) / 2 * 1.0001, math.log(2) / 2 * 1.0001)
    y = series(r, [1 / math.factorial(i + 2) for i in range(20)])
    return report(r, y, r * r / np.exp(r), 4)


def fit_log() -> tuple[F64, float]:
    """P in log(1 + f) = f - f^2/2 + f^3 P(f) for 1 + f in [sqrt(1/2), sqrt(2)]; relative error."""
    f = points(math.sqrt(0.5) - 1, math.sqrt(2) - 1)
    y = series(f, [(-1) ** i / (i + 3) for i in range(120)])
    return report(f, y, f**3 / np.log1p(f), 7)


def fit_erf_small() -> tuple[F64, float]:
    """P in erf(x) = x + x P(x^2) for |x| <= 0.9375; relative error."""
    s = points(0.0, 0.9375**2)
    y = 2 / math.sqrt(math.pi) * series(s, [(-1) ** i / (math.factorial(i) * (2 * i + 1)) for i in range(30)]) - 1
    return report(s, y, 1 / (1 + y), 6)


def fit_erf_large() -> tuple[F64, float]:
    """P in erfc(t) = exp(-t (1 + P(t))) for t in [0.9375, 4]; error of erf relative to erf."""
    t = points(0.9375, 4.0)
    tail = np.array([math.erfc(v) for v in t])
    return report(t, -np.log(tail) / t - 1, t * tail / (1 - tail), 6)


def report(x: F64, y: F64, weight: F64, degree: int) -> tuple[F64, float]:
    """Fitted coefficients rounded to float32, and the largest weighted error they leave."""
    c = minimax(x, y, weight, degree).astype(np.float32).astype(np.float64)
    return c, float(np.abs(weight * (series(x, list(c)) - y)).max())


if __name__ == "__main__":
    for fit in (fit_exp, fit_log, fit_erf_small, fit_erf_large):
        found, error = fit()
        print(fit.__name__, f"error {error:.2e} ({error * 2**24:.3f} * 2^-24)")
        print("   ", ", ".join(repr(float(np.float32(v))) for v in found))
