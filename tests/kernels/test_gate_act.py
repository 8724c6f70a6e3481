"""Gated and plain activations against float64, to f32 and q8 rows, for sizes that end anywhere.

Seen red with: up read at I rounded to 32; the padding of a sigmoid left at 0.5; the last unit running past the row.
"""

import numpy as np
import pytest

from goinfer.codegen import reference
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernels.gate_act import ACTIVATIONS
from tests.kernels.harness import RUNNABLE, Call, run
from tests.kernels.rows import SPECIALS, WIDTHS, assert_quantised, empty_rows, f32_rows, f32_values, special


def activated(rows: np.ndarray, act: str, gated: bool, target: str, *, out: str = "f32", chunk: int = 64,
              splits: list[int] | None = None) -> np.ndarray:  # fmt: skip
    """The kernel's output rows."""
    size = rows.shape[1] // 2 if gated else rows.shape[1]
    x, result = f32_rows(rows), empty_rows(len(rows), size, out)
    units = -(-size // chunk)
    call = Call(
        "gate_act", {"act": act, "out": out, "gated": gated}, [x, result],
        [size, x.strides[0], result.strides[0], chunk], rows=len(rows), units=units,
    )  # fmt: skip
    before = x.tobytes()
    run(call, target, splits)
    assert x.tobytes() == before
    return result


def check(rows: np.ndarray, act: str, gated: bool, target: str) -> None:
    """NaN and infinity exactly where float64 has them, else within 4e-7 of the result (GELU: of gate * up).

    An activation below 2^-126 may be 0, whatever it is multiplied with.
    """
    size = rows.shape[1] // 2 if gated else rows.shape[1]
    got = f32_values(activated(rows, act, gated, target), size)
    want = reference.gate_act(rows, act, size, gated)
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    plain = np.isfinite(rounded)
    assert np.array_equal(got[~plain], rounded[~plain], equal_nan=True)
    up = np.abs(rows[:, size:]).astype(np.float64) if gated else np.ones_like(want)
    scale = np.abs(rows[:, :size]) * up if act.startswith("gelu") else np.abs(want)
    bound = 4e-7 * scale[plain] + 2.0**-126 * (1 + up[plain])
    assert (np.abs(got[plain] - want[plain]) <= bound).all()


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_random_rows(target: str, act: str, gated: bool) -> None:
    for size in WIDTHS:
        rng = np.random.default_rng(size)
        check(rng.standard_normal((3, size * 2 if gated else size)).astype(np.float32) * 4, act, gated, target)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_awkward_gates(target: str, act: str) -> None:
    """Awkward gates with ordinary ups, and the other way round."""
    ordinary = np.random.default_rng(1).standard_normal(72).astype(np.float32)
    odd = [special(kind, 72) for kind in SPECIALS] + [np.full(72, v, np.float32) for v in (-1e38, 1e38, -88.5, 20.0)]
    rows = np.stack([np.concatenate([r, ordinary]) for r in odd] + [np.concatenate([ordinary, r]) for r in odd])
    check(rows, act, True, target)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("act, gated", [("silu", True), ("gelu_tanh", True), ("sigmoid", False)])
def test_q8_output_is_the_f32_output_quantised(target: str, act: str, gated: bool) -> None:
    rows = np.random.default_rng(2).standard_normal((4, 180)).astype(np.float32)
    rows[1, 50] = np.nan
    size = 90 if gated else 180
    plain = f32_values(activated(rows, act, gated, target), size)
    assert_quantised(activated(rows, act, gated, target, out="q8"), plain)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("out", ["f32", "q8"])
@pytest.mark.parametrize("size", [96, 100])
def test_units_rows_and_cuts_do_not_change_a_byte(target: str, out: str, size: int) -> None:
    rows = np.random.default_rng(3).standard_normal((5, 2 * size)).astype(np.float32)
    whole = activated(rows, "silu", True, target, out=out, chunk=1024)
    for chunk, splits in ((32, [1, 3, 7, 14]), (64, [1]), (96, None)):
        again = activated(rows, "silu", True, target, out=out, chunk=chunk, splits=splits)
        assert again.tobytes() == whole.tobytes(), chunk
    assert activated(rows[3:4], "silu", True, target, out=out).tobytes() == whole[3:4].tobytes()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(CompileError, match=r"swish.*silu"):
        run(Call("gate_act", {"act": "swish", "out": "f32", "gated": True}, []), "x86-64-v3")
    with pytest.raises(CompileError, match="f16"):
        run(Call("gate_act", {"act": "silu", "out": "f16", "gated": True}, []), "x86-64-v3")
