"""Rows for kernel tests: f32 and q8 rows with poisoned padding, awkward values, and reading q8 rows back."""

import numpy as np

from goinfer.bundle_format.kernel_abi import GROUP, f32_row_bytes, q8_row_bytes, round_up
from goinfer.codegen import reference
from tests.kernels.harness import aligned

WIDTHS = (1, 31, 32, 33, 100, 576)
"""Row widths around a group, a vector and a model's hidden size."""

SPECIALS = ("zeros", "minus_zero", "denormal", "huge", "equal", "one_value", "nan", "infinity")


def f32_rows(values: np.ndarray) -> np.ndarray:
    """Values [R, K] in rows of the ABI's width; the padding is NaN, so using it shows."""
    rows = aligned((len(values), f32_row_bytes(values.shape[1]) // 4), np.float32)
    rows[:, : values.shape[1]] = values
    return rows


def empty_rows(n: int, k: int, form: str = "f32") -> np.ndarray:
    """Poisoned rows for a kernel's output."""
    if form == "q8":
        return aligned((n, q8_row_bytes(k)), np.uint8)
    return aligned((n, f32_row_bytes(k) // 4), np.float32)


def weight_vector(values: np.ndarray) -> np.ndarray:
    """A norm's weight: padded with zeros to a group, as bundles store it."""
    out = aligned((round_up(len(values), GROUP),), np.float32, 0)
    out[: len(values)] = values
    return out


def f32_values(rows: np.ndarray, k: int) -> np.ndarray:
    """The k columns of f32 rows; asserts that what pads them to a group is zero (in a row with a NaN, zero or NaN)."""
    padding = rows[:, k : round_up(k, GROUP)]
    lost = ~np.isfinite(rows[:, :k]).all(axis=1, keepdims=True)
    assert ((padding == 0) | (lost & np.isnan(padding))).all(), "padding of an f32 row is not zero"
    return rows[:, :k]


def q8_parts(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, scales, sums) of q8 rows, padding included; asserts that a group's two sums agree."""
    codes, scales, sums, weighted = reference.unpack_q8(rows, k)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(weighted, scales * sums.astype(np.float32), equal_nan=True)
    return codes, scales, sums


def assert_quantised(rows: np.ndarray, values: np.ndarray) -> None:
    """q8 rows hold exactly the codes, scales and sums of f32 values (a NaN scale matches any NaN)."""
    got, want = q8_parts(rows, values.shape[1]), reference.quantise(values)
    for name, a, b in zip(("codes", "scales", "sums"), got, want, strict=True):
        assert np.array_equal(a, b, equal_nan=name == "scales"), f"{name} differ: {a[a != b][:4]} {b[a != b][:4]}"
    plain = ~np.isnan(want[1])
    assert got[1][plain].tobytes() == want[1][plain].tobytes()


def special(kind: str, k: int) -> np.ndarray:
    """A row of awkward values."""
    row = np.random.default_rng(k).standard_normal(k).astype(np.float32)
    if kind == "zeros":
        row[:] = 0
    elif kind == "minus_zero":
        row[:] = -0.0
    elif kind == "denormal":
        row *= np.float32(1e-40)
    elif kind == "huge":
        row[k // 2] = -1e18
    elif kind == "equal":
        row[:] = 0.75
    elif kind == "one_value":
        row[:] = 0
        row[k - 1] = 3.5
    elif kind in ("nan", "infinity"):
        row[k // 3] = np.nan if kind == "nan" else np.inf
    return row
