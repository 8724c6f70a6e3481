"""Gate, up and activation in one step: the same bytes as a matmul followed by gate_act, for every format and target.

Seen red with: up panels taken from I / 16 + 1 on; the second gate panel's bias for both; the second half of the
kept rows finished from the first.
"""

import numpy as np
import pytest

from goinfer.bundle_format.kernel_abi import f32_row_bytes
from tests.kernels.harness import NATIVE_TARGETS, Call, aligned, run
from tests.kernels.rows import empty_rows, f32_rows
from tests.kernels.test_gate_act import activated
from tests.kernels.test_matmul import FORMATS, case

ROW_TILE = 72
"""More rows than the kernel keeps at a time."""


def products(fmt: str, size: int, rows: int, bias: np.ndarray | None, target: str) -> tuple[Call, np.ndarray]:
    """A matmul over gate|up of `size` columns each, run, and its rows."""
    call, *_ = case(fmt, 2 * size, 160, rows, seed=size + rows)
    if bias is not None:
        call.attrs = {**call.attrs, "bias": True}
        call.pointers.append(bias)
    run(call, target)
    return call, call.pointers[2][:, : 2 * size].copy()


def gated(call: Call, size: int, act: str, out: str, target: str, splits: list[int] | None = None) -> np.ndarray:
    """The fused step on the same weights and rows."""
    weights, xs, _, *bias = call.pointers
    result = empty_rows(call.rows, size, out)
    attrs = {"format": call.attrs["format"], "bias": bool(bias), "domain": "rows", "act": act, "out": out}
    fused = Call(
        "matmul_gated", attrs, [weights, xs, result, *bias], [call.ints[0], xs.strides[0], result.strides[0], size],
        rows=call.rows, row_tile=ROW_TILE, units=size // 32,
    )  # fmt: skip
    run(fused, target, splits)
    return result


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("out", ["f32", "q8"])
@pytest.mark.parametrize("rows", [1, 5, 75])
def test_same_bytes_as_two_steps(target: str, fmt: str, out: str, rows: int) -> None:
    call, wide = products(fmt, 96, rows, None, target)
    fused = gated(call, 96, "silu", out, target, splits=[1, 2])
    apart = activated(wide, "silu", True, target, out=out)
    assert np.isfinite(wide).all() and fused.tobytes() == apart.tobytes()


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("act", ["gelu_tanh", "relu2"])
def test_bias_comes_before_the_activation(target: str, act: str) -> None:
    bias = aligned((128,), np.float32, 0)
    bias[:] = np.arange(128) * 0.11 - 3
    call, wide = products("int4", 64, 7, bias, target)
    assert gated(call, 64, act, "f32", target).tobytes() == activated(wide, act, True, target).tobytes()


@pytest.mark.parametrize("target", NATIVE_TARGETS)
def test_a_row_has_the_same_bits_in_every_tile(target: str) -> None:
    call, _ = products("int4", 64, 75, None, target)
    together = gated(call, 64, "silu", "q8", target)
    weights, xs, _ = call.pointers
    for row in (0, 47, 48, 71, 72, 74):
        alone = Call(call.kind, call.attrs, [weights, _copy(xs[row : row + 1]), empty_rows(1, 128)], call.ints, rows=1)
        assert gated(alone, 64, "silu", "q8", target).tobytes() == together[row].tobytes(), row


def test_a_nan_in_a_row_stays_in_it() -> None:
    rows = f32_rows(np.ones((3, 160), np.float32))
    rows[1, 5] = np.nan
    call, *_ = case("f32", 128, 160, 3, seed=1)
    call.pointers[1] = rows
    assert rows.strides[0] == f32_row_bytes(160)
    found = gated(call, 64, "silu", "f32", "x86-64-v3")[:, :64]
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def _copy(rows: np.ndarray) -> np.ndarray:
    out = aligned(rows.shape, rows.dtype, 0)
    out[...] = rows
    return out
