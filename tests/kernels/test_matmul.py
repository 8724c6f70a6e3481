"""Matmul kernels against numpy on stored weights and stored activations, for every format and target.

Seen red with: 16 * sum instead of 8 * sum taken off int4; every row of a tile using row 0's scale; the bias of part 0
added to every part; int4min's minimum taken for its middle; a lone row summing by multiply and add where a tile uses
fma.
"""

import numpy as np
import pytest

from goinfer.bundle_format.kernel_abi import f32_row_bytes, round_up
from goinfer.codegen import reference
from goinfer.codegen.kernels.matmul_tiles import QUANTISED_INPUT
from goinfer.compiler.checkpoints.ggml_grids import Grid
from goinfer.compiler.quant.formats import format_named, quantise_activations
from tests.kernels.harness import NATIVE_TARGETS, Call, aligned, place, run

FORMATS = ("f32", "bf16", "int8", "int8int8", "int4", "int4min")
ROW_BLOCK = 48
"""Rows of a tile: whole register tiles, and one left over."""

SIZES = [(16, 32, 1), (48, 96, 3), (40, 112, 5), (176, 576, 9), (16, 1536, 70)]


def packed_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed q8 rows and the values they stand for."""
    codes, scales, sums = quantise_activations(x)
    return place(reference.pack_q8(codes, scales, sums)), reference.dequantise(codes, scales, x.shape[1])


def case(fmt: str, n: int, k: int, rows: int, seed: int, kind: str = "normal") -> tuple[Call, np.ndarray, np.ndarray]:
    """A call, the float64 result it should give, and the scale of its rounding errors."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((n, k)).astype(np.float32) * 0.1
    x = rng.standard_normal((rows, k)).astype(np.float32)
    if kind == "zeros":
        x[:] = 0
    elif kind == "huge":
        x[:, k // 2] = 1e4
        w[n // 2] *= 100
    elif kind == "equal":
        x[:], w[:] = 0.75, -0.5
    storage = format_named("int8" if fmt == "int8int8" else fmt)
    packed = storage.pack(w)
    stored = storage.unpack(packed, n, k).astype(np.float64)
    if fmt in QUANTISED_INPUT:
        xs, values = packed_rows(x)
    else:
        xs = aligned((rows, f32_row_bytes(k) // 4), np.float32, 0)
        xs[:, :k] = x
        values = x.astype(np.float64)
    out = aligned((rows, f32_row_bytes(round_up(n, 16)) // 4), np.float32)
    call = Call(
        "matmul", {"format": fmt, "epilogue": "store", "bias": False, "domain": "rows"},
        [place(packed), xs, out], [round_up(k, 32) // 32, xs.strides[0], out.strides[0]],
        rows=rows, row_tile=ROW_BLOCK, units=round_up(n, 16) // 16,
    )  # fmt: skip
    return call, reference.matmul(values, stored), np.abs(values) @ np.abs(stored).T


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("size", SIZES)
def test_matches_numpy(target: str, fmt: str, size: tuple[int, int, int]) -> None:
    n, k, rows = size
    call, want, magnitude = case(fmt, n, k, rows, seed=n + k)
    run(call, target)
    got = call.pointers[2][:, :n]
    assert got.dtype == np.float32
    error = np.abs(got - want) / (magnitude + 1e-30)
    assert np.isfinite(error).all() and error.max() <= 2e-6, (error.max(), np.unravel_index(error.argmax(), got.shape))


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", ["zeros", "huge", "equal"])
def test_adversarial_values(target: str, fmt: str, kind: str) -> None:
    call, want, magnitude = case(fmt, 33, 80, 6, seed=5, kind=kind)
    run(call, target)
    got = call.pointers[2][:, :33]
    error = np.abs(got - want) / (magnitude + 1e-30)
    assert np.isfinite(error).all() and error.max() <= 2e-6, error.max()


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("lean", [0.0, 3.0, -30.0])
def test_minima_of_any_sign_and_size(target: str, lean: float) -> None:
    """A real grid: groups that lie around `lean`, so that the minimum is not -8 scales."""
    rng = np.random.default_rng(4)
    n, k, rows = 40, 96, 7
    codes = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.05, 0.2, (n, k // 32)).astype(np.float16)
    minima = (lean - 8 * scales.astype(np.float32) * rng.uniform(0.5, 1.5, scales.shape)).astype(np.float16)
    storage = format_named("int4min")
    packed = storage.repack(Grid(4, 0, codes, scales, minima))
    call, *_ = case("int4min", n, k, rows, seed=9)
    xs, values = packed_rows(rng.standard_normal((rows, k)).astype(np.float32))
    call.pointers[:2] = [place(packed), xs]
    stored = storage.unpack(packed, n, k).astype(np.float64)
    run(call, target)
    error = np.abs(call.pointers[2][:, :n] - reference.matmul(values, stored)) / (np.abs(values) @ np.abs(stored).T)
    assert np.isfinite(error).all() and error.max() <= 2e-6, error.max()


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_a_row_has_the_same_bits_in_every_tile(target: str, fmt: str) -> None:
    """70 rows in one call against each row alone, and against another cut of the tiles."""
    call, *_ = case(fmt, 64, 160, 70, seed=3)
    run(call, target)
    together = call.pointers[2].copy()
    call.pointers[2][:] = np.nan
    run(call, target, splits=[1, 4, 6])
    assert together.tobytes() == call.pointers[2].tobytes()
    weights, xs, _ = call.pointers
    for row in (0, 3, 63, 64, 69):
        out = aligned((1, together.shape[1]), np.float32)
        alone = Call(call.kind, call.attrs, [weights, place(xs[row : row + 1]), out], call.ints,
                     rows=1, row_tile=ROW_BLOCK, units=call.units)  # fmt: skip
        run(alone, target)
        assert out[0, :64].tobytes() == together[row, :64].tobytes(), row


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_bias_and_add_epilogues(target: str, fmt: str) -> None:
    call, *_ = case(fmt, 40, 64, 5, seed=8)
    run(call, target)
    plain = call.pointers[2][:, :40].copy()
    bias = aligned((64,), np.float32, 0)
    bias[:40] = np.arange(40) * 0.37 - 5
    for epilogue, start in (("store", None), ("add", 1.25)):
        call.attrs = {"format": fmt, "epilogue": epilogue, "bias": True, "domain": "rows"}
        call.pointers = [*call.pointers[:3], bias]
        call.pointers[2][:] = np.nan if start is None else start
        run(call, target)
        want = plain + bias[:40] if start is None else np.float32(start) + (plain + bias[:40])
        assert call.pointers[2][:, :40].tobytes() == want.tobytes()
