"""Weight formats: layout byte by byte, round trips, padding, errors, and the quantiser's quality."""

import gguf
import ml_dtypes
import numpy as np
import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.compiler.checkpoints.ggml_grids import Grid, grid_of
from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant.formats import FORMATS, format_named, quantise_activations

SHAPES = [(1, 1), (16, 32), (17, 33), (48, 96), (5, 576), (260, 64), (112, 65)]


def weights(n, k, seed=0):
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_size_and_shape_of_a_round_trip(name, shape):
    f = FORMATS[name]
    w = weights(*shape)
    packed = f.pack(w)
    assert packed.dtype == np.uint8
    assert packed.shape == (f.nbytes(*shape),)
    assert f.nbytes(*shape) == -(-shape[0] // 16) * -(-shape[1] // 32) * f.block_bytes
    assert f.block_bytes * 8 / 512 == f.bits_per_weight
    back = f.unpack(packed, *shape)
    assert back.dtype == np.float32
    assert back.shape == shape
    bars = {"f32": 0, "bf16": 2**-8, "int8": 0.02, "int4": 0.25, "int4min": 0.25}
    assert np.abs(back - w).max() <= bars[name] * np.abs(w).max()


def test_f32_and_bf16_bits():
    w = weights(33, 70)
    assert FORMATS["f32"].unpack(FORMATS["f32"].pack(w), 33, 70).tobytes() == w.tobytes()
    bf16 = FORMATS["bf16"]
    expected = w.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert bf16.unpack(bf16.pack(w), 33, 70).tobytes() == expected.tobytes()
    block = bf16.pack(w)[:1024].view(np.uint16).reshape(32, 16)
    assert np.array_equal(block, expected[:16, :32].T.view(np.uint32) >> 16)


def test_bf16_rounds_ties_to_even():
    upper = np.arange(0x3F00, 0x4100, dtype=np.uint32)
    w = np.concatenate([(upper << 16) + low for low in (0x7FFF, 0x8000, 0x8001)]).astype(np.uint32).view(np.float32)
    w = w.reshape(48, 32)
    f = FORMATS["bf16"]
    assert f.unpack(f.pack(w), 48, 32).tobytes() == w.astype(ml_dtypes.bfloat16).astype(np.float32).tobytes()


def test_f32_layout():
    w = weights(32, 64)
    packed = FORMATS["f32"].pack(w).view(np.float32).reshape(2, 2, 32, 16)
    for panel, block, kk, row in [(0, 0, 0, 0), (1, 0, 31, 15), (0, 1, 7, 3), (1, 1, 16, 8)]:
        assert packed[panel, block, kk, row] == w[16 * panel + row, 32 * block + kk]


def test_int8_layout():
    """Scale 1/127 steps: codes are chosen by hand so that every byte of a block has one right value."""
    rng = np.random.default_rng(1)
    codes = rng.integers(-126, 127, (16, 64)).astype(np.float32)
    codes[:, 0], codes[:, 32] = 127, -127
    packed = FORMATS["int8"].pack(codes * np.float32(0.25)).reshape(2, 544)
    for block in range(2):
        assert np.array_equal(packed[block, 512:].view(np.float16), np.full(16, 0.25, np.float16))
        loads = packed[block, :512].view(np.int8).reshape(8, 64)
        for j in range(8):
            for r in range(16):
                for i in range(4):
                    assert loads[j, 4 * r + i] == codes[r, 32 * block + 4 * j + i]


def test_int4_layout():
    rng = np.random.default_rng(2)
    codes = rng.integers(-8, 8, (16, 64)).astype(np.float32)
    codes[:, 5], codes[:, 40] = -8, -8
    codes[:, 6], codes[:, 41] = 7, 7
    packed = FORMATS["int4"].pack(codes * np.float32(0.5)).reshape(2, 288)
    for block in range(2):
        assert np.array_equal(packed[block, 256:].view(np.float16), np.full(16, 0.5, np.float16))
        loads = packed[block, :256].reshape(4, 64)
        for j in range(4):
            for r in range(16):
                for i in range(4):
                    byte = int(loads[j, 4 * r + i])
                    assert (byte & 15) - 8 == codes[r, 32 * block + 8 * j + i]
                    assert (byte >> 4) - 8 == codes[r, 32 * block + 8 * j + 4 + i]


def test_int4min_layout():
    """A grid by hand: every nibble, scale and minimum of a block has one right place."""
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (16, 64), dtype=np.uint8)
    scales, minima = [rng.uniform(-1, 1, (16, 2)).astype(np.float16) for _ in range(2)]
    f = FORMATS["int4min"]
    packed = f.repack(Grid(4, 0, codes, scales, minima))
    wide = codes.reshape(16, 2, 32) * scales[..., None].astype(np.float32) + minima[..., None].astype(np.float32)
    assert f.unpack(packed, 16, 64).tobytes() == wide.reshape(16, 64).tobytes()
    for block, content in enumerate(packed.reshape(2, 320)):
        assert np.array_equal(content[256:288].view(np.float16), scales[:, block])
        assert np.array_equal(content[288:].view(np.float16), minima[:, block])
        loads = content[:256].reshape(4, 16, 4)
        for j in range(4):
            first = 32 * block + 8 * j
            assert np.array_equal(loads[j] & 15, codes[:, first : first + 4])
            assert np.array_equal(loads[j] >> 4, codes[:, first + 4 : first + 8])


def test_int4min_of_floats_is_int4():
    w = weights(33, 96, 3)
    narrow, wide = FORMATS["int4"].measure(w), FORMATS["int4min"].measure(w)
    assert (narrow.energy, narrow.error) == (wide.energy, wide.error)
    assert np.array_equal(FORMATS["int4"].unpack(narrow.data, 33, 96), FORMATS["int4min"].unpack(wide.data, 33, 96))


@pytest.mark.parametrize("name", FORMATS)
def test_a_band_of_whole_panels_is_a_contiguous_range(name):
    f = FORMATS[name]
    w = weights(80, 96, 3)
    whole = f.pack(w)
    bands = [f.pack(w[a:b]) for a, b in [(0, 16), (16, 64), (64, 80)]]
    assert np.concatenate(bands).tobytes() == whole.tobytes()


@pytest.mark.parametrize(("name", "point"), [("int4", 0x88), ("int8", 0)])
def test_padding_is_the_zero_point_with_scale_zero(name, point):
    f = FORMATS[name]
    block = f.pack(weights(3, 40, 4)).reshape(2, f.block_bytes)
    loads = block[:, :-32].reshape(2, -1, 16, 4)
    assert np.all(loads[:, :, 3:] == point)
    assert np.all(block[:, -32:].view(np.float16)[:, 3:] == 0)
    assert np.all(loads[1, 8 // (8 if name == "int4" else 4):] == point)


@pytest.mark.parametrize("name", FORMATS)
def test_zero_groups_decode_to_exact_zeros(name):
    w = weights(20, 256, 5)
    w[7] = 0
    w[:, 64:96] = 0
    f = FORMATS[name]
    back = f.unpack(f.pack(w), 20, 256)
    assert np.isfinite(back).all()
    assert not back[7].any()
    assert not back[:, 64:96].any()
    if name in ("int4", "int8", "int4min"):
        assert not f.pack(np.zeros((16, 32), np.float32))[f.code_bytes :].any()


@pytest.mark.parametrize("k", [896, 112, 65, 33])
@pytest.mark.parametrize("name", FORMATS)
def test_row_lengths_that_are_no_block_multiple(name, k):
    """BUGS Q07: padded in the layout, and the padding does not reach the values."""
    f = FORMATS[name]
    w = weights(18, k, 6)
    wide = np.zeros((32, -(-k // 32) * 32), np.float32)
    wide[:18, :k] = w
    assert f.pack(w).tobytes() == f.pack(wide).tobytes()


def test_int4_beats_the_plain_rounding_of_q4_0():
    w = weights(64, 512, 7)
    f = FORMATS["int4"]
    ours = np.square(f.unpack(f.pack(w), 64, 512) - w).mean()
    kind = gguf.GGMLQuantizationType.Q4_0
    q4_0 = gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind)
    assert ours < 0.92 * np.square(q4_0 - w).mean()


HELD = {
    "f32": (), "bf16": (), "int8": ("Q4_0", "Q5_0", "Q8_0"), "int4": ("Q4_0",), "int4min": ("Q4_0", "Q4_1"),
}  # fmt: skip
"""The types of the gguf library's own quantisers that each format holds exactly."""


@pytest.mark.parametrize("source", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [16, 19, 40])
def test_repack_keeps_the_values_of_the_source(name, source, rows):
    kind = gguf.GGMLQuantizationType[source]
    blocks = gguf.quants.quantize(weights(rows, 96, 8), kind)
    f = FORMATS[name]
    packed = f.repack(grid_of(source, blocks))
    if source not in HELD[name]:
        assert packed is None
        return
    assert packed.shape == (f.nbytes(rows, 96),)
    assert np.array_equal(f.unpack(packed, rows, 96), gguf.quants.dequantize(blocks, kind))
    tail = packed.reshape(-1, f.block_bytes)[-1]
    if rows % 16:
        assert not tail[f.code_bytes :].view(np.float16).reshape(-1, 16)[:, rows % 16 :].any(), "padding has a value"


def test_a_q8_0_block_with_code_minus_128_is_not_repacked():
    blocks = gguf.quants.quantize(weights(16, 32, 9), gguf.GGMLQuantizationType.Q8_0)
    assert FORMATS["int8"].repack(grid_of("Q8_0", blocks)) is not None
    blocks[3, 5] = 0x80
    assert FORMATS["int8"].repack(grid_of("Q8_0", blocks)) is None


@pytest.mark.parametrize(("name", "value"), [("int4", 6e5), ("int4min", 9e4), ("int8", 9e6), ("bf16", 3.4e38)])
def test_a_weight_out_of_range_is_refused(name, value):
    w = np.zeros((16, 32), np.float32)
    w[3, 3] = value
    with pytest.raises(WeightRangeError, match="recipe"):
        FORMATS[name].pack(w)
    FORMATS["f32"].pack(w)


@pytest.mark.parametrize("scale", [1e-6, 1e-7, 3e-8, 1e-12, 1e-40])
def test_tiny_weights_stay_finite_and_no_worse_than_zero(scale):
    w = weights(16, 32, 10) * np.float32(scale)
    for name in ("int4", "int4min", "int8"):
        back = FORMATS[name].unpack(FORMATS[name].pack(w), 16, 32)
        assert np.isfinite(back).all()
        assert np.abs(back - w).max() <= np.abs(w).max()


def test_format_named_lists_the_known_ones():
    assert format_named("int4") is FORMATS["int4"]
    with pytest.raises(UsageError, match=r"int3.*int4"):
        format_named("int3")


def test_activations_of_a_written_example():
    x = np.zeros((2, 64), np.float32)
    x[0, :4] = [127, -63.5, 0.5, 1.5]
    x[1, 32:34] = [-2.54, 1.27]
    codes, scales, sums = quantise_activations(x)
    assert codes[0, :4].tolist() == [127, -64, 0, 2]
    assert scales[0].tolist() == [1, 0]
    assert codes[1, 32:34].tolist() in ([-127, 63], [-127, 64])
    assert sums.tolist() == [[65, 0], [0, codes[1, 32:34].sum()]]
    assert codes.shape == (2, 64)
    assert (codes.dtype, scales.dtype, sums.dtype) == (np.int8, np.float32, np.int32)


def test_activations_that_are_not_finite_stay_visible():
    x = weights(1, 96, 12)
    x[0, 3], x[0, 40] = np.nan, -np.inf
    codes, scales, sums = quantise_activations(x)
    assert not codes[0, :64].any()
    assert not sums[0, :2].any()
    assert np.isnan(scales[0, 0])
    assert np.isposinf(scales[0, 1])
    assert np.isfinite(scales[0, 2])


def test_activations_pad_k_and_survive_denormals():
    x = weights(3, 40, 11)
    x[1] = 0
    x[2] = 1e-39
    codes, scales, sums = quantise_activations(x)
    assert codes.shape == (3, 64)
    assert scales.shape == sums.shape == (3, 2)
    assert not codes[0, 40:].any()
    assert not codes[1:].any()
    assert not scales[1:].any()
    back = codes[0].reshape(2, 32) * scales[0][:, None]
    assert np.abs(back.reshape(-1)[:40] - x[0]).max() <= scales[0].max() * 0.5001
