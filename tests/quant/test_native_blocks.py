"""Source blocks moved by machine code against the NumPy meaning of the same move (repack of a grid): the same bytes.

Seen red with: the nibbles of load 1 taken from the high halves; the second f16 stored in the first's place; -128
not looked for.
"""

import numpy as np
import pytest

from goinfer.compiler.checkpoints.ggml_grids import grid_of
from goinfer.compiler.checkpoints.ggml_types import BY_NAME
from goinfer.compiler.quant import native_blocks
from goinfer.compiler.quant.formats import format_named

PAIRS = [("int4", "Q4_0"), ("int4min", "Q4_1"), ("int8", "Q8_0")]


def blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes, so every bit of codes, scales and minima is seen to arrive; no int8 code of -128."""
    made = np.random.default_rng(seed).integers(0, 256, (rows, columns, BY_NAME[kind].block_bytes), dtype=np.uint8)
    if kind == "Q8_0":
        made[..., 2:][made[..., 2:] == 0x80] = 1
    return made.reshape(rows, -1)


@pytest.mark.parametrize(("fmt", "kind"), PAIRS)
@pytest.mark.parametrize(("rows", "columns"), [(16, 1), (16, 5), (48, 18), (160, 3)])
def test_the_same_bytes(fmt: str, kind: str, rows: int, columns: int) -> None:
    given = blocks(kind, rows, columns)
    grid = grid_of(kind, given)
    assert grid is not None
    want, got = format_named(fmt).repack(grid), native_blocks.repack(fmt, kind, given)
    assert want is not None and got is not None and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("at", [0, 31, 32 * 18 - 1])
def test_the_code_that_int8_has_not_is_left_to_others(at: int) -> None:
    given = blocks("Q8_0", 32, 18)
    given.reshape(32, 18, 34)[17, at // 32, 2 + at % 32] = 0x80
    assert native_blocks.repack("int8", "Q8_0", given) is None


@pytest.mark.parametrize(("fmt", "kind"), [("int8", "Q4_0"), ("int4", "Q4_1"), ("int4min", "Q4_0"), ("int8", "Q6_K")])
def test_other_pairs_are_left_to_others(fmt: str, kind: str) -> None:
    assert native_blocks.repack(fmt, kind, np.zeros((16, BY_NAME[kind].block_bytes), np.uint8)) is None


def test_rows_that_do_not_fill_panels_are_left_to_others() -> None:
    assert native_blocks.repack("int4", "Q4_0", blocks("Q4_0", 17, 2)) is None


def test_without_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_blocks, "_functions", lambda: None)
    assert native_blocks.repack("int4", "Q4_0", blocks("Q4_0", 16, 2)) is None
