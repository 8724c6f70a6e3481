"""Grids of GGML types: codes, scales and minima that give the library's values back.

Seen red with: Q4_K's scales and minima swapped; Q5_0's fifth bits shifted by one; nibbles shifted in place (seen only
with a single block, whose parts are contiguous).
"""

import gguf
import numpy as np
import pytest

from goinfer.compiler.checkpoints.dequantise import dequantise
from goinfer.compiler.checkpoints.ggml_grids import grid_of, has_minimum, is_finer_than_four_bit, is_four_bit
from goinfer.compiler.checkpoints.ggml_types import BY_NAME
from tests.mixed_gguf import k_blocks


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0"])
def test_one_block_is_left_as_it_was(kind):
    blocks = blocks_of(kind, 1, 32)
    before = blocks.copy()
    dequantise(kind, blocks)
    grid_of(kind, blocks)
    assert np.array_equal(blocks, before)


def blocks_of(kind, rows=5, columns=512):
    rng = np.random.default_rng(3)
    if kind == "Q4_K":
        return k_blocks(rng, kind, rows, columns)
    w = rng.standard_normal((rows, columns)).astype(np.float32) + np.float32(0.3)
    return gguf.quants.quantize(w, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_grid_gives_the_values_back(kind, rows):
    blocks = blocks_of(kind, rows)
    before = blocks.copy()
    grid = grid_of(kind, blocks)
    assert np.array_equal(blocks, before), "reading changed the source"
    assert grid.codes.shape == (rows, 512) and grid.scales.shape == (rows, 16)
    assert int(grid.codes.max()) < 1 << grid.bits
    signed = grid.codes.astype(np.float32).reshape(rows, 16, 32) - grid.zero
    values = signed * grid.scales.astype(np.float32)[..., None]
    if grid.minima is not None:
        values = values + grid.minima.astype(np.float32)[..., None]
    want = dequantise(kind, blocks)
    assert grid.exact == (kind != "Q4_K")
    if grid.exact:
        assert np.array_equal(values.reshape(rows, 512), want)
    else:
        off = np.linalg.norm(values.reshape(rows, 512) - want) / np.linalg.norm(want)
        assert 0 < off < 1e-3


def test_a_q4_k_scale_beyond_f16_has_no_grid():
    blocks = blocks_of("Q4_K")
    blocks[2, 0:2] = np.array([6e4], np.float16).view(np.uint8)
    blocks[2, 4:8] = 63
    assert grid_of("Q4_K", blocks) is None


def test_other_types_have_no_grid():
    assert all(grid_of(kind, np.zeros((1, BY_NAME[kind].block_bytes), np.uint8)) is None
               for kind in ("F16", "BF16", "Q5_1", "Q2_K", "Q6_K", "IQ4_XS"))  # fmt: skip


def test_classes_of_types():
    """Every type is below, at or above 4 bits; what has a minimum is a 4-bit type."""
    four = {kind for kind in BY_NAME if is_four_bit(kind)}
    finer = {kind for kind in BY_NAME if is_finer_than_four_bit(kind)}
    assert four == {"Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ4_XS"}
    assert finer == {"F32", "F16", "BF16", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"}
    assert {kind for kind in BY_NAME if has_minimum(kind)} == {"Q4_1", "Q4_K"}
    assert not is_finer_than_four_bit("I32")
