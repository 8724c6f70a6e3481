"""GGUF headers: every refusal with literal bytes, and what a hostile header may cost."""

import struct
import tracemalloc

import numpy as np
import pytest

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from tests.checkpoints.gguf_forge import (
    ARRAY,
    F32,
    I8,
    I32,
    LLAMA,
    MODEL,
    Q8_0,
    STRING,
    TENSORS,
    U32,
    Forge,
    Tensor,
    Value,
    model,
    text,
)


def refused(tmp_path, raw, error, match, peak=4 << 20):
    """Opening `raw` raises exactly `error`, in one line, without taking memory that the file does not justify."""
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < peak
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value) or error is errors.NotACheckpointError


def test_the_small_model_opens(tmp_path):
    checkpoint = open_checkpoint(MODEL.write(tmp_path / "m.gguf"))
    assert checkpoint.kind == "gguf"
    assert checkpoint.architecture == "llama"
    assert [t.name for t in checkpoint.tensors.values()] == [t.name for t in TENSORS]
    assert checkpoint.tensors["token_embd.weight"].shape == (20, 64)
    assert checkpoint.tensors["token_embd.weight"].nbytes == 20 * 2 * 34
    assert checkpoint.tokenizer is None
    assert checkpoint.generation == {"eos_token_ids": []}


def test_g01_only_the_magic(tmp_path):
    refused(tmp_path, b"GGUF", errors.CheckpointTruncatedError, r"needs 4 bytes .* ends at byte 4")


@pytest.mark.parametrize("raw", [b"", b"GG", b"version 1 of my notes\n", b"<!DOCTYPE html>", b"\x00" * 64])
def test_no_gguf_at_all(tmp_path, raw):
    refused(tmp_path, raw, errors.NotACheckpointError, r"m\.gguf: not a GGUF file: it (is empty|does not start)")


@pytest.mark.parametrize(("version", "match"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_other_versions(tmp_path, version, match):
    refused(tmp_path, MODEL.with_(version=version).bytes(), errors.UnsupportedError, match)


@pytest.mark.parametrize("record", [24, 32, 33, 48, 64, 96, 200, 368])
@pytest.mark.parametrize("which", ["n_tensors", "n_keys"])
def test_g02_counts_whose_product_wraps(tmp_path, record, which):
    for count in ((2**63 - 1) // record, 2**64 // record + 1, 2**64 - 1):
        refused(tmp_path, Forge(**{which: count}).bytes(), errors.CountError, f"claims {count}")


@pytest.mark.parametrize("kind", [STRING, U32, 10, 0])
def test_g03_array_length(tmp_path, kind):
    raw = Forge(n_keys=1).bytes()[:24] + text("k") + struct.pack("<IIQ", ARRAY, kind, 2**40)
    refused(tmp_path, raw.ljust(100, b"\0"), errors.CountError, rf"'k' claims {2**40} values")


def test_g03_string_lengths(tmp_path):
    start = Forge(n_keys=1).bytes()[:24]
    huge = struct.pack("<Q", 2**62)
    refused(tmp_path, (start + huge).ljust(100, b"\0"), errors.CountError, "a key .* claims")
    value = start + text("k") + struct.pack("<I", STRING) + huge
    refused(tmp_path, value.ljust(100, b"\0"), errors.CountError, "the value of 'k'")
    array = start + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + text("a") + huge
    refused(tmp_path, array.ljust(100, b"\0"), errors.CountError, "a value of 'k'")


@pytest.mark.parametrize(
    ("dims", "kind"),
    [((2**63 - 1, 2), I8), ((2**63 - 1, 2), F32), ((1152, 2**42 + 1), Q8_0), ((2**32, 2**32), F32),
     ((2**64 - 32,), Q8_0)],
)  # fmt: skip
def test_g04_products_that_overflow(tmp_path, dims, kind):
    forged = model(tensors=(*TENSORS, Tensor("big", dims, kind, b"")))
    refused(tmp_path, forged.bytes(), errors.TensorShapeError, "'big' has shape")


@pytest.mark.parametrize("dims", [(0, 4), (65, 2), (33,), (16, 32)])
def test_rows_that_are_no_whole_blocks(tmp_path, dims):
    forged = model(tensors=(*TENSORS, Tensor("odd", dims, Q8_0, b"")))
    refused(tmp_path, forged.bytes(), errors.TensorShapeError, "'odd' .* whole blocks of 32")


@pytest.mark.parametrize("rank", [0, 5, 2**31])
def test_ranks(tmp_path, rank):
    raw = bytearray(Forge(LLAMA, (Tensor("t", (4,), F32),)).header())
    at = raw.index(text("t")) + 9
    raw[at : at + 4] = struct.pack("<I", rank)
    refused(tmp_path, bytes(raw) + bytes(100), errors.TensorShapeError, f"'t' has {rank} dimensions")


@pytest.mark.parametrize(
    "value",
    [Value(U32, 24), Value(U32, 65535), Value(U32, 0), Value(U32, 3),
     Value(U32, 4), Value(U32, 2**31), Value(I32, -1), Value(STRING, "32"), Value(7, 1),
     Value(U32, [32]), Value(6, 32.0), Value(U32, 131072)],
)  # fmt: skip
def test_g07_alignments(tmp_path, value):
    forged = model(("general.alignment", value))
    refused(tmp_path, forged.bytes(), errors.TensorAlignmentError, "general.alignment is")


@pytest.mark.parametrize("alignment", [8, 64, 4096, 65536])
def test_g07_valid_alignments(tmp_path, alignment):
    forged = model(("general.alignment", Value(U32, alignment)), alignment=alignment)
    read = open_checkpoint(forged.write(tmp_path / "m.gguf")).read("output_norm.weight")
    plain = open_checkpoint(MODEL.write(tmp_path / "n.gguf")).read("output_norm.weight")
    assert read.tobytes() == plain.tobytes()


def test_g10_a_range_past_the_end(tmp_path):
    forged = model(tensors=(*TENSORS, Tensor("far", (64,), F32, b"", offset=1 << 20)))
    refused(tmp_path, forged.bytes(), errors.TensorRangeError, "'far' needs bytes up to")
    forged = model(tensors=(*TENSORS, Tensor("far", (64,), F32, b"", offset=2**64 - 32)))
    refused(tmp_path, forged.bytes(), errors.TensorRangeError, "'far'")


@pytest.mark.parametrize(
    ("cut", "name"),
    [(1, "blk.0.attn_k.weight"), (2100, "blk.0.attn_k.weight"), (64 * 32 * 2 + 70, "blk.0.attn_q.weight")],
)
def test_g11_a_cut_file_names_the_first_missing_tensor(tmp_path, cut, name):
    raw = MODEL.bytes()
    match = f"truncated: tensor '{name}' needs .* the file has {len(raw) - cut}"
    refused(tmp_path, raw[:-cut], errors.TensorRangeError, match)


def test_g11_no_tensors_at_all(tmp_path):
    refused(tmp_path, Forge(LLAMA).bytes(), errors.MissingTensorError, "holds no tensors")


def test_every_truncation_is_refused(tmp_path):
    raw = MODEL.bytes()
    for size in [*range(0, 900), *range(900, len(raw), 97)]:
        path = tmp_path / "cut.gguf"
        path.write_bytes(raw[:size])
        with pytest.raises(errors.CheckpointError):
            open_checkpoint(path)


def test_g12_duplicates(tmp_path):
    twice = model(tensors=(*TENSORS, TENSORS[2]))
    refused(tmp_path, twice.bytes(), errors.DuplicateError, "'blk.0.attn_q.weight' occurs twice")
    keys = Forge((*LLAMA, ("llama.block_count", Value(U32, 2))), TENSORS)
    refused(tmp_path, keys.bytes(), errors.DuplicateError, "'llama.block_count' occurs twice")


def test_g13_offsets(tmp_path):
    unaligned = model(tensors=(TENSORS[0], Tensor("output_norm.weight", (64,), F32, offset=1377)))
    refused(tmp_path, unaligned.bytes(), errors.TensorAlignmentError, "'output_norm.weight' starts at 1377")
    shared = model(tensors=(TENSORS[0], Tensor("output_norm.weight", (64,), F32, offset=1344)))
    refused(tmp_path, shared.bytes(), errors.OverlapError, "'token_embd.weight' and 'output_norm.weight'")
    same = model(tensors=(TENSORS[1], Tensor("token_embd.weight", (64, 1), F32, offset=0)))
    refused(tmp_path, same.bytes(), errors.OverlapError, "share bytes")


def test_bytes_after_the_last_tensor(tmp_path):
    refused(tmp_path, MODEL.with_(tail=b"\1" * 40).bytes(), errors.HoleError, "belong to nothing")
    padded = MODEL.with_(tail=bytes(4096)).write(tmp_path / "padded.gguf")
    assert len(open_checkpoint(padded).tensors) == len(TENSORS)


@pytest.mark.parametrize("kind", [4, 5, 9, 15, 24, 26, 28, 31, 36, 38, 42, 2**32 - 1])
def test_types_that_hold_no_weights(tmp_path, kind):
    forged = model(tensors=(*TENSORS, Tensor("odd", (256, 2), kind, bytes(4096))))
    refused(tmp_path, forged.bytes(), errors.TensorTypeError, "'odd' has type")


def test_values_of_unknown_type(tmp_path):
    start = Forge(n_keys=1).bytes()[:24] + text("k")
    scalar = start + struct.pack("<I", 13)
    refused(tmp_path, scalar.ljust(99, b"\0"), errors.HeaderFormatError, "'k' has unknown type 13")
    nested = start + struct.pack("<IIQ", ARRAY, ARRAY, 1)
    refused(tmp_path, nested.ljust(99, b"\0"), errors.HeaderFormatError, "array of unknown type 9")
    boolean = start + struct.pack("<IB", 7, 2)
    refused(tmp_path, boolean.ljust(99, b"\0"), errors.HeaderFormatError, "'k' is the boolean 2")


def test_names_that_are_not_text(tmp_path):
    forged = Forge((("x", Value(U32, 1)),), (Tensor("t", (4,), F32),)).bytes()
    refused(tmp_path, forged.replace(text("x"), text(b"\xff")), errors.HeaderFormatError, "a key .* is not UTF-8")
    refused(tmp_path, forged.replace(text("t"), text(b"\xff")), errors.HeaderFormatError, "a tensor name")


def test_a_message_is_one_line_whatever_the_names_hold(tmp_path):
    raw = Forge(n_keys=1).bytes()[:24] + text("a\nb\x1b[31m") + struct.pack("<I", 99)
    refused(tmp_path, raw.ljust(99, b"\0"), errors.HeaderFormatError, r"a\\nb")


def test_no_architecture_and_no_embedding(tmp_path):
    refused(tmp_path, Forge(LLAMA[1:], TENSORS).bytes(), errors.ConfigError, "general.architecture is missing")
    refused(tmp_path, Forge(LLAMA, TENSORS[1:]).bytes(), errors.MissingTensorError, "token_embd.weight")


def test_strings_across_the_read_window(tmp_path):
    """Vocabularies longer than one window, with strings of every length around its edges."""
    rng = np.random.default_rng(0)
    tokens = ["x" * int(n) for n in rng.integers(0, 60, 20000)] + ["y" * 300000, "", "z" * 262144, b"\xff\xfe", "ä"]
    forged = model(("general.tags", Value(STRING, tokens)))
    path = forged.write(tmp_path / "m.gguf")
    from goinfer.compiler.checkpoints.files import SourceFile
    from goinfer.compiler.checkpoints.gguf_header import read_header

    header = read_header(SourceFile(path))
    assert header.metadata["general.tags"] == tokens
    assert [t.name for t in header.tensors] == [t.name for t in TENSORS]
