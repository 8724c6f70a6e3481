"""exp, log, tanh, sigmoid, erf and softplus of f32, scalar or vector: polynomials, so that an image calls no libm.

MAX_ULP states the largest errors. At the edges: exp(0) is exactly 1 and exp(-inf) exactly 0; log(0) is -inf and log of
a negative number NaN; tanh and erf are odd (so -0.0 gives -0.0) and exactly 1 from 9.02 and 3.92 on. A result below
2^-126 may be 0. NaN gives NaN. Nothing is converted to an integer outside its range and no table is read, so any
argument is safe. Every function does the same operations in every lane: a value does not depend on where it sits.
"""

import math

from goinfer.codegen.dsl import V, abs_, bitcast, const, fma, select

MAX_ULP = {
    "exp": 1.01, "exp_nonpositive": 1.01, "log": 0.85, "tanh": 2.62, "sigmoid": 2.5, "erf": 1.09, "softplus": 2.13,
}  # fmt: skip
"""Largest error over all float32 arguments with a normal result, in units in the last place of the exact result.

Measured against float64 on every 61st bit pattern, and on every fifth where the error is large. The coefficients come
from tests/kernels/fit_vecmath.py.
"""

_LOG2E = 1.4426950408889634
_LN2_HI = 0.693359375
"""ln 2 to 9 bits, so that n * _LN2_HI is exact for every exponent n."""
_LN2_LO = -2.12194440e-4
_MAGIC = 12582912.0
"""1.5 * 2^23: x + _MAGIC rounds x to an integer, ties to even, and keeps it in the low bits."""

_EXP_MAX = 88.72283172607422
"""The largest float32 whose exponential is finite."""
_EXP_MIN = -87.33654022216797
"""The smallest float32 whose exponential is a normal number."""

_EXP = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368716575205326, 0.001381459878757596)
_LOG = (
    0.3333333134651184, -0.2500081956386566, 0.20001226663589478, -0.16623356938362122,
    0.14201757311820984, -0.13160182535648346, 0.1276157796382904, -0.07634497433900833,
)  # fmt: skip
_ERF_SPLIT = 0.9375
_ERF_SMALL = (
    0.12837916612625122, -0.37612631916999817, 0.1128367930650711, -0.02685849741101265,
    0.005198829807341099, -0.0008118075202219188, 8.2674618170131e-05,
)  # fmt: skip
_ERF_LARGE = (
    0.12865851819515228, 0.6351107954978943, 0.10630365461111069, -0.023819362744688988,
    0.0036694537848234177, -0.0003294209309387952, 1.1890377209056169e-05,
)  # fmt: skip


def _word(x: V) -> str | tuple[str, int]:
    return ("i32", x.lanes) if x.lanes else "i32"


def _bits(x: V) -> V:
    return bitcast(x, _word(x))


def _float(bits: V) -> V:
    return bitcast(bits, ("f32", bits.lanes) if bits.lanes else "f32")


def _polynomial(x: V, coefficients: tuple[float, ...]) -> V:
    """Horner, constant first in the tuple."""
    out = const(coefficients[-1], x.spec)
    for c in reversed(coefficients[:-1]):
        out = fma(out, x, const(c, x.spec))
    return out


def _at_most(x: V, limit: float) -> V:
    """min(x, limit), NaN kept."""
    top = const(limit, x.spec)
    return select(top < x, top, x)


def _at_least(x: V, limit: float) -> V:
    """max(x, limit), NaN kept."""
    bottom = const(limit, x.spec)
    return select(bottom > x, bottom, x)


def _copy_sign(magnitude: V, sign: V) -> V:
    return _float((_bits(magnitude) & 0x7FFFFFFF) | (_bits(sign) & -0x80000000))


def _reduced(x: V) -> tuple[V, V]:
    """(s, n) with exp(x) = (1 + s) * 2^n and |ln(1 + s)| <= ln2 / 2; n is in the low bits of an i32."""
    shifted = fma(x, const(_LOG2E, x.spec), const(_MAGIC, x.spec))
    n = shifted - _MAGIC
    r = fma(n, const(-_LN2_HI, x.spec), x)
    r = fma(n, const(-_LN2_LO, x.spec), r)
    return fma(r * r, _polynomial(r, _EXP), r), _bits(shifted)


def exp(x: V) -> V:
    """e^x. The exponent is added to the bits of a number in [0.7, 1.42), which reaches the whole normal range."""
    clamped = _at_least(_at_most(x, _EXP_MAX), _EXP_MIN)
    s, n = _reduced(clamped)
    value = _float(_bits(s + 1.0) + (n << 23))
    value = select(x < _EXP_MIN, const(0.0, x.spec), value)
    return select(x <= _EXP_MAX, value, x * math.inf)


def exp_nonpositive(x: V) -> V:
    """exp for arguments that are at most 0 or NaN: the same bits, two instructions fewer."""
    s, n = _reduced(_at_least(x, _EXP_MIN))
    value = (s + 1.0) * _float((n + 127) << 23)
    return select(x < _EXP_MIN, const(0.0, x.spec), value)


def sigmoid(x: V) -> V:
    """1 / (1 + e^-x)."""
    return 1.0 / (exp(-x) + 1.0)


def tanh(x: V) -> V:
    """t / (t + 2) with t = e^(2|x|) - 1, which loses no digits near 0."""
    s, n = _reduced(_at_most(abs_(x), 10.0) * 2.0)
    power = _float((n + 127) << 23)
    t = fma(power, s, power - 1.0)
    return _copy_sign(t / (t + 2.0), x)


def log(x: V) -> V:
    """Natural logarithm."""
    tiny = x < 2.0**-126
    scaled = select(tiny, x * 2.0**23, x)
    offset = select(tiny, const(-23.0, x.spec), const(0.0, x.spec))
    bits = _bits(scaled)
    # the exponent of the fraction is chosen so that it lies in [sqrt(1/2), sqrt(2))
    steps = (bits - 0x3F3504F3).ashr(23)
    f = _float(bits - (steps << 23)) - 1.0
    e = _float(steps + 0x4B400000) - _MAGIC + offset
    square = f * f
    tail = fma(square * f, _polynomial(f, _LOG), e * _LN2_LO)
    value = fma(e, const(_LN2_HI, x.spec), f + fma(square, const(-0.5, x.spec), tail))
    value = select(x > 0.0, value, const(math.nan, x.spec))
    value = select(x.eq(0.0), const(-math.inf, x.spec), value)
    return select(x < math.inf, value, x + x)


def softplus(x: V) -> V:
    """log(1 + e^x) = max(x, 0) + log(1 + y) with y = e^-|x|; what 1 + y rounds away is added back."""
    y = exp_nonpositive(-abs_(x))
    u = y + 1.0
    return _at_least(x, 0.0) + (log(u) + (y - (u - 1.0)) / u)


def erf(x: V) -> V:
    """Error function: x + x P(x^2) near 0, 1 - exp(-t (1 + P(t))) beyond."""
    t = _at_most(abs_(x), 4.0)
    square = t * t
    near = fma(t, _polynomial(square, _ERF_SMALL), t)
    far = 1.0 - exp_nonpositive(fma(-t, _polynomial(t, _ERF_LARGE), -t))
    return _copy_sign(select(t < _ERF_SPLIT, near, far), x)
