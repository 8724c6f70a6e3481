"""Dequantisation against the gguf library, bit for bit, on random bytes (NaN and infinite scales included)."""

import gguf
import numpy as np
import pytest

from goinfer.compiler.checkpoints.dequantise import dequantise
from goinfer.compiler.checkpoints.ggml_types import BY_NAME, BY_NUMBER, OTHER_NAMES


def blocks(kind, rows, columns, seed):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns * kind.block_bytes), dtype=np.uint8)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (40, 300)])
def test_equals_the_library(name, rows, columns):
    kind = BY_NAME[name]
    raw = blocks(kind, rows, columns if kind.block_size < 256 else -(-columns // 8), rows)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
    got = dequantise(name, raw)
    assert got.dtype == np.float32
    assert got.shape == (rows, raw.shape[1] // kind.block_bytes * kind.block_size)
    same = got.view(np.uint32) == np.ascontiguousarray(expected, np.float32).view(np.uint32)
    assert (same | (np.isnan(got) & np.isnan(expected))).all()


def test_every_type_the_library_dequantises_is_in_the_table():
    for kind in gguf.GGMLQuantizationType:
        block, size = gguf.constants.GGML_QUANT_SIZES[kind]
        try:
            gguf.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            assert kind.value in OTHER_NAMES
            assert kind.value not in BY_NUMBER
        else:
            known = BY_NUMBER[kind.value]
            assert (known.name, known.block_size, known.block_bytes) == (kind.name, block, size)


@pytest.mark.parametrize("name", [t.name for t in BY_NAME.values() if t.scales is not None])
def test_a_block_is_finite_exactly_if_its_scales_are(name):
    """What check_blocks relies on: the listed offsets are the scales, and nothing else in a block matters."""
    kind = BY_NAME[name]
    raw = blocks(kind, 64, 8, 1).reshape(-1, kind.block_bytes)
    halves = [np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16)[:, 0] for at in kind.scales]
    with np.errstate(all="ignore"):
        finite = np.isfinite(dequantise(name, raw))
    expected = np.logical_and.reduce([np.isfinite(h) for h in halves])
    assert 0 < expected.sum() < len(raw)
    assert (finite.all(axis=1) == expected).all()
    assert not finite[~expected].any() or len(kind.scales) > 1


def test_half_precision_covers_every_bit_pattern():
    raw = np.arange(65536, dtype=np.uint16)
    finite = (raw & 0x7C00) != 0x7C00
    for values in (raw[finite], raw):
        got = dequantise("F16", values.view(np.uint8).reshape(1, -1))[0]
        with np.errstate(invalid="ignore"):
            expected = values.view(np.float16).astype(np.float32)
        same = got.view(np.uint32) == expected.view(np.uint32)
        assert (same | np.isnan(expected)).all()
        assert (np.isnan(got) == np.isnan(expected)).all()
