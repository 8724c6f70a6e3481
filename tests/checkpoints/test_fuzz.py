"""Both parsers on damaged files: a checkpoint or a typed error, in bounded memory, whatever the bytes."""

import json
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goinfer.bundle_format.errors import GoinferError
from goinfer.compiler.checkpoints import open_checkpoint
from tests.checkpoints.gguf_forge import BOOL, I32, STRING, U32, Value, model
from tests.checkpoints.safetensors_forge import container, entry, file_of, folder, weights

PEAK = 6 << 20

FORGED = model(
    ("tokenizer.ggml.model", Value(STRING, "gpt2")),
    ("tokenizer.ggml.tokens", Value(STRING, ["a", "b", "ab", "<s>"])),
    ("tokenizer.ggml.token_type", Value(I32, [1, 1, 1, 3])),
    ("tokenizer.ggml.merges", Value(STRING, ["a b"])),
    ("tokenizer.ggml.add_bos_token", Value(BOOL, 1)),
    ("tokenizer.ggml.bos_token_id", Value(U32, 3)),
    ("general.alignment", Value(U32, 32)),
)
GGUF, GGUF_HEADER = FORGED.bytes(), len(FORGED.header())

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def try_to_use(path: Path, config: bool = True) -> bool:
    """Open and read everything; True if all of it worked. Any exception but a typed one is the failure."""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        try:
            for name in checkpoint.tensors:
                checkpoint.read(name, 0, 2)
                checkpoint.read_blocks(name, 1, 3)
            if config:
                checkpoint.config.finish({"model_type"})
        finally:
            checkpoint.close()
    except GoinferError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1500
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < PEAK
    return True


def edited(raw: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """Each edit replaces `length` bytes at a position by others."""
    out = bytearray(raw)
    for position, length, new in edits:
        at = position % (len(out) + 1)
        out[at : at + length] = new
    return bytes(out)


INTERESTING = [b"\0" * 8, b"\xff" * 8, b"\xff" * 4, b"\x00\x00\x00\x80", (2**63 - 1).to_bytes(8, "little"), b"\x7f" * 8]
EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 16), st.sampled_from([0, 1, 4, 8, 40]),
        st.one_of(st.binary(max_size=12), st.sampled_from(INTERESTING)),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


def test_the_seeds_are_valid(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GGUF)
    assert try_to_use(tmp_path / "m.gguf", config=False)
    assert try_to_use(folder(tmp_path / "m", {"model.safetensors": file_of(weights("a", "b"))}), config=False)


@FUZZ
@given(edits=EDITS, cut=st.one_of(st.none(), st.integers(0, len(GGUF))))
def test_gguf_with_bytes_changed(tmp_path, edits, cut):
    path = tmp_path / "m.gguf"
    path.write_bytes(edited(GGUF[:cut], edits))
    try_to_use(path)


@FUZZ
@given(edits=EDITS)
def test_gguf_headers_with_bytes_changed(tmp_path, edits):
    path = tmp_path / "m.gguf"
    header = edited(GGUF[:GGUF_HEADER], edits)
    path.write_bytes(header + GGUF[GGUF_HEADER:])
    try_to_use(path)


@pytest.mark.parametrize("seed", range(4))
def test_gguf_numbers_replaced_one_by_one(tmp_path, seed):
    """Every 8-byte position of the header holds, in turn, a number that overflows, wraps or lies."""
    rng = random.Random(seed)
    path = tmp_path / "m.gguf"
    for at in range(seed, GGUF_HEADER, 4):
        value = rng.choice([0, 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1, len(GGUF), len(GGUF) + 1])
        path.write_bytes(GGUF[:at] + value.to_bytes(8, "little") + GGUF[at + 8 :])
        try_to_use(path)


@FUZZ
@given(raw=st.binary(max_size=300))
def test_gguf_from_nothing(tmp_path, raw):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + raw)
    assert not try_to_use(path)


SAFETENSORS = file_of(weights("a", "b", "c"))


@FUZZ
@given(edits=EDITS, cut=st.one_of(st.none(), st.integers(0, len(SAFETENSORS))))
def test_safetensors_with_bytes_changed(tmp_path, edits, cut):
    try_to_use(folder(tmp_path / "m", {"model.safetensors": edited(SAFETENSORS[:cut], edits)}))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(["F32", "BF16", "U8", "Q9"]), JSON),
        "shape": st.one_of(st.lists(st.integers(-1, 2**64), max_size=3), JSON),
        "data_offsets": st.one_of(st.lists(st.integers(-1, 2**64), max_size=3), JSON),
    }
)


@FUZZ
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), st.one_of(ENTRY, JSON)),
    data=st.binary(max_size=64),
)
def test_safetensors_headers_of_any_shape(tmp_path, header, data):
    try_to_use(folder(tmp_path / "m", {"model.safetensors": container(header, data)}))


@FUZZ
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4), shift=st.integers(0, 2))
def test_safetensors_are_accepted_exactly_if_they_cover_the_data(tmp_path, sizes, shift):
    header, at = {}, 0
    for i, size in enumerate(sizes):
        header[f"t{i}"] = entry("U8", [size], at + shift, at + shift + size)
        at += size
    files = {"model.safetensors": container(header, bytes(at))}
    opened = True
    try:
        open_checkpoint(folder(tmp_path / "m", files)).close()
    except GoinferError:
        opened = False
    assert opened == (shift == 0)


SCALED = {"type": "linear", "factor": 2.0}
VALID_CONFIG = {"model_type": "llama", "vocab_size": 6, "rope_theta": 1e4, "rope_scaling": SCALED}


@FUZZ
@given(
    changes=st.dictionaries(
        st.sampled_from(["model_type", "rope_theta", "rope_scaling", "rope_parameters", "text_config", "vocab_size",
                         "eos_token_id", "bos_token_id", "quantization_config", "dtype", "torch_dtype"]),
        JSON, max_size=4,
    ),
    nested=JSON,
)  # fmt: skip
def test_configs_of_any_shape(tmp_path, changes, nested):
    config = VALID_CONFIG | changes
    if isinstance(nested, dict):
        config |= {"rope_parameters": nested}
    json.dumps(config)
    try_to_use(folder(tmp_path / "m", {"model.safetensors": SAFETENSORS}, config))


@FUZZ
@given(
    changes=st.dictionaries(
        st.sampled_from(["model", "added_tokens", "post_processor", "pre_tokenizer", "normalizer"]), JSON, max_size=3
    ),
    special=JSON,
    generation=JSON,
)
def test_tokenizer_files_of_any_shape(tmp_path, changes, special, generation):
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []} | changes
    files = {
        "model.safetensors": SAFETENSORS, "tokenizer.json": tokenizer, "tokenizer_config.json": special,
        "generation_config.json": generation,
    }  # fmt: skip
    try_to_use(folder(tmp_path / "m", files, VALID_CONFIG))
