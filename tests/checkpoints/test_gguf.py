"""Reading GGUF tensors: bands, blocks, weights that are not finite, split models, LFS pointers."""

import gguf
import numpy as np
import pytest

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.checkpoints.ggml_types import BY_NAME
from tests.checkpoints.gguf_forge import (
    F16,
    F32,
    LLAMA,
    MODEL,
    Q4_0,
    Q8_0,
    TENSORS,
    U32,
    Forge,
    Tensor,
    Value,
    model,
    payload,
)


def test_reads_equal_the_library(tmp_path):
    path = MODEL.write(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        whole = checkpoint.read(tensor.name)
        assert whole.tobytes() == expected.astype(np.float32).tobytes()
        assert whole.shape == checkpoint.tensors[tensor.name].shape
        for start, stop in [(0, 0), (0, 1), (3, 7), (5, None), (19, 1000), (7, 3)]:
            assert checkpoint.read(tensor.name, start, stop).tobytes() == whole[start:stop].tobytes()


def test_blocks_are_the_source_s_bytes(tmp_path):
    checkpoint = open_checkpoint(MODEL.write(tmp_path / "m.gguf"))
    raw = np.frombuffer(payload(TENSORS[2]), np.uint8).reshape(64, 36)
    assert checkpoint.read_blocks("blk.0.attn_q.weight").tobytes() == raw.tobytes()
    assert checkpoint.read_blocks("blk.0.attn_q.weight", 8, 12).tobytes() == raw[8:12].tobytes()
    assert checkpoint.read_blocks("blk.0.attn_q.weight", 0, 0).shape == (0, 36)
    assert checkpoint.read_blocks("blk.0.attn_k.weight") is None
    assert checkpoint.read_blocks("output_norm.weight") is None


def test_three_dimensions_and_quantised_vectors(tmp_path):
    tensors = (*TENSORS, Tensor("experts", (64, 3, 5), Q8_0), Tensor("vector", (96,), Q8_0))
    checkpoint = open_checkpoint(model(tensors=tensors).write(tmp_path / "m.gguf"))
    whole = checkpoint.read("experts")
    assert whole.shape == (5, 3, 64)
    assert checkpoint.read("experts", 2, 4).tobytes() == whole[2:4].tobytes()
    assert checkpoint.read_blocks("experts", 2, 4).shape == (2, 3 * 2 * 34)
    vector = checkpoint.read("vector")
    assert vector.shape == (96,)
    assert checkpoint.read("vector", 10, 50).tobytes() == vector[10:50].tobytes()
    assert checkpoint.read_blocks("vector") is None


def test_an_unknown_name(tmp_path):
    checkpoint = open_checkpoint(MODEL.write(tmp_path / "m.gguf"))
    with pytest.raises(errors.MissingTensorError, match=r"m\.gguf: no tensor 'blk\.7'"):
        checkpoint.read("blk.7")


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0x7C01])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS"])
def test_q10_scales_that_are_not_finite(tmp_path, kind, bits):
    """Every f16 scale of every kind, in the block that holds row 3, values from 256 on."""
    known = BY_NAME[kind]
    columns = 512 // known.block_size
    for at in known.scales:
        raw = np.zeros((5, columns, known.block_bytes), np.uint8)
        raw[3, columns // 2, at : at + 2] = np.array([bits], np.uint16).view(np.uint8)
        tensor = Tensor("w", (512, 5), known.number, raw.tobytes())
        checkpoint = open_checkpoint(model(tensors=(*TENSORS, tensor)).write(tmp_path / "m.gguf"))
        for read in (checkpoint.read, checkpoint.read_blocks):
            assert read("w", 0, 3) is not None
            with pytest.raises(errors.NonFiniteError, match=r"'w': .* at index \[3, 256\]"):
                read("w", 2, 5)


@pytest.mark.parametrize(("kind", "dtype"), [(F32, np.float32), (F16, np.float16)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_q10_values_that_are_not_finite(tmp_path, kind, dtype, value):
    norm = np.ones(64, dtype)
    norm[41] = value
    matrix = np.ones((6, 64), dtype)
    matrix[4, 9] = value
    tensors = (TENSORS[0], Tensor("n", (64,), kind, norm.tobytes()), Tensor("w", (64, 6), kind, matrix.tobytes()))
    checkpoint = open_checkpoint(model(tensors=tensors).write(tmp_path / "m.gguf"))
    with pytest.raises(errors.NonFiniteError, match=r"'n': .* \[41\]"):
        checkpoint.read("n")
    with pytest.raises(errors.NonFiniteError, match=r"'w': .* \[4, 9\]"):
        checkpoint.read("w", 3)
    assert checkpoint.read("w", 0, 4).shape == (4, 64)


def test_mxfp4_that_overflows_is_refused(tmp_path):
    raw = np.zeros((2, 17), np.uint8)
    raw[1] = 0xFF
    tensor = Tensor("w", (32, 2), BY_NAME["MXFP4"].number, raw.tobytes())
    checkpoint = open_checkpoint(model(tensors=(*TENSORS, tensor)).write(tmp_path / "m.gguf"))
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.MXFP4)
    assert not np.isfinite(expected[1]).all()
    for read in (checkpoint.read, checkpoint.read_blocks):
        with pytest.raises(errors.NonFiniteError, match=r"\[1, 0\]"):
            read("w")


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = MODEL.write(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(path)
    with path.open("r+b") as f:
        f.truncate(path.stat().st_size - 100)
    with pytest.raises(errors.CheckpointTruncatedError, match=r"m\.gguf: ends at byte"):
        checkpoint.read("blk.0.attn_k.weight")


def split(*, second=TENSORS[2:], no=(0, 1), count=(2, 2), total=4):
    first = model(
        ("split.no", Value(2, no[0])), ("split.count", Value(2, count[0])), ("split.tensors.count", Value(5, total)),
        tensors=TENSORS[:2],
    )  # fmt: skip
    return first, Forge((("split.no", Value(2, no[1])), ("split.count", Value(2, count[1]))), second)


def write_split(tmp_path, parts):
    for i, part in enumerate(parts):
        part.write(tmp_path / f"m-{i + 1:05d}-of-{len(parts):05d}.gguf")
    return tmp_path / "m-00001-of-00002.gguf"


@pytest.mark.parametrize("opened", ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"])
def test_g15_either_part_opens_the_whole(tmp_path, opened):
    write_split(tmp_path, split())
    checkpoint = open_checkpoint(tmp_path / opened)
    plain = open_checkpoint(MODEL.write(tmp_path / "plain.gguf"))
    assert list(checkpoint.tensors) == list(plain.tensors)
    assert checkpoint.path.name == "m-00001-of-00002.gguf"
    for name in plain.tensors:
        assert checkpoint.read(name).tobytes() == plain.read(name).tobytes()


def test_g15_a_missing_part(tmp_path):
    path = write_split(tmp_path, split())
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(errors.SplitError, match=r"part m-00002-of-00002\.gguf of the split model is not beside it"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"no": (0, 0)}, "does not call itself part 1"), ({"count": (2, 3)}, "does not call itself part 1"),
     ({"total": 5}, "hold 4 tensors, the first one says 5")],
)  # fmt: skip
def test_g15_parts_that_contradict_each_other(tmp_path, changes, match):
    with pytest.raises(errors.SplitError, match=match):
        open_checkpoint(write_split(tmp_path, split(**changes)))


def test_g15_renamed_parts(tmp_path):
    first, second = split()
    with pytest.raises(errors.SplitError, match="give the parts their own names back"):
        open_checkpoint(first.write(tmp_path / "mine.gguf"))
    with pytest.raises(errors.SplitError, match="part 1 "):
        open_checkpoint(second.write(tmp_path / "m-00001-of-00002.gguf"))


def test_g15_parts_joined_by_hand(tmp_path):
    first, second = split()
    path = tmp_path / "m-00001-of-00002.gguf"
    path.write_bytes(first.bytes() + second.bytes())
    second.write(tmp_path / "m-00002-of-00002.gguf")
    with pytest.raises(errors.SplitError, match="joined end to end"):
        open_checkpoint(path)
    path = tmp_path / "joined.gguf"
    path.write_bytes(MODEL.bytes() + MODEL.bytes())
    with pytest.raises(errors.SplitError, match="joined end to end"):
        open_checkpoint(path)


def test_g12_one_name_in_two_parts(tmp_path):
    path = write_split(tmp_path, split(second=(TENSORS[1], *TENSORS[2:]), total=5))
    with pytest.raises(errors.DuplicateError, match=r"'output_norm\.weight' occurs twice: in m-00001-.* and"):
        open_checkpoint(path)


def test_g15_lfs_pointers(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 98362432\n"
    path = tmp_path / "m.gguf"
    path.write_bytes(pointer)
    with pytest.raises(errors.LfsPointerError, match=r"m\.gguf: a Git LFS pointer.*git lfs pull"):
        open_checkpoint(path)
    path = write_split(tmp_path, split())
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(pointer)
    with pytest.raises(errors.LfsPointerError, match="m-00002-of-00002"):
        open_checkpoint(path)


def test_metadata_from_a_file_of_the_library(tmp_path):
    """A writer that is not ours: the reader agrees on every value and tensor."""
    path = tmp_path / "lib.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_string("general.name", "tiny ü")
    writer.add_array("general.tags", ["a", "b"])
    w = np.random.default_rng(0).standard_normal((20, 256)).astype(np.float32)
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "TQ1_0", "TQ2_0"):
        number = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"w.{kind}", gguf.quants.quantize(w, number), raw_dtype=number)
    writer.add_tensor("token_embd.weight", w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert checkpoint.read(tensor.name, 3, 9).tobytes() == np.ascontiguousarray(expected[3:9]).tobytes()


def test_reading_a_band_takes_memory_for_the_band(tmp_path):
    import tracemalloc

    tensors = (Tensor("token_embd.weight", (1024, 8192), Q4_0, bytes(8192 * 32 * 18)), TENSORS[1])
    checkpoint = open_checkpoint(model(tensors=tensors).write(tmp_path / "m.gguf"))
    tracemalloc.start()
    checkpoint.read("token_embd.weight", 512, 1024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 512 * 1024 * 4 * 1.6 + (1 << 20)


@pytest.mark.parametrize("key", ["general.architecture"])
def test_an_architecture_that_is_no_text(tmp_path, key):
    forged = Forge((*LLAMA[1:], (key, Value(U32, 3))), TENSORS)
    with pytest.raises(errors.ConfigError, match=key):
        open_checkpoint(forged.write(tmp_path / "m.gguf"))
