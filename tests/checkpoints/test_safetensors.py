"""Safetensors files, shard indices and folders: values, every refusal with literal bytes, bounded memory."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from goinfer.compiler import errors
from goinfer.compiler.checkpoints import open_checkpoint
from tests.checkpoints.safetensors_forge import CONFIG, container, entry, file_of, folder, weights

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def refused(tmp_path, raw, error, match):
    path = folder(tmp_path / "m", {SINGLE: raw})
    tracemalloc.start()
    try:
        with pytest.raises(error, match=match) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)])
def test_values_of_each_type_equal_the_library(tmp_path, dtype, kind):
    w = np.random.default_rng(0).standard_normal((50, 33)).astype(kind)
    path = folder(tmp_path / "m", {SINGLE: safetensors.numpy.save({"w": w, "n": w[0]})})
    checkpoint = open_checkpoint(path)
    assert checkpoint.kind == "safetensors"
    assert checkpoint.architecture == "llama"
    assert checkpoint.tensors["w"].dtype == dtype
    assert checkpoint.tensors["w"].shape == (50, 33)
    expected = w.astype(np.float32)
    assert checkpoint.read("w").tobytes() == expected.tobytes()
    assert checkpoint.read("w", 7, 20).tobytes() == expected[7:20].tobytes()
    assert checkpoint.read("w", 7, 7).shape == (0, 33)
    assert checkpoint.read("n", 3).tobytes() == expected[0, 3:].tobytes()
    assert checkpoint.read_blocks("w") is None
    with pytest.raises(errors.MissingTensorError, match="no tensor 'x'"):
        checkpoint.read("x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_q10_values_that_are_not_finite(tmp_path, kind, value):
    w = np.zeros((5, 4), kind)
    w[3, 2] = value
    checkpoint = open_checkpoint(folder(tmp_path / "m", {SINGLE: safetensors.numpy.save({"w": w})}))
    assert checkpoint.read("w", 0, 3).shape == (3, 4)
    with pytest.raises(errors.NonFiniteError, match=r"'w': .* \[3, 2\]"):
        checkpoint.read("w", 2)


def test_types_without_weights_open_but_do_not_read(tmp_path):
    raw = file_of({"w": ("F32", np.zeros((2, 2), np.float32)), "ids": ("I64", np.zeros(3, np.int64))})
    checkpoint = open_checkpoint(folder(tmp_path / "m", {SINGLE: raw}))
    assert checkpoint.tensors["ids"].dtype == "I64"
    with pytest.raises(errors.TensorTypeError, match="'ids' has type I64"):
        checkpoint.read("ids")


@pytest.mark.parametrize(
    "offsets", [[8, 4], [-4, 4], [0], [0, 4, 8], [], None, "0,4", [0.0, 4.0], [False, True], [0, None]]
)
def test_s02_offsets_that_are_no_range(tmp_path, offsets):
    header = {"w": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}
    refused(tmp_path, container(header, bytes(8)), errors.OffsetError, r"'w': data_offsets .* not a range")


def test_s03_overlap_and_hole(tmp_path):
    overlap = {"a": entry("F32", [16], 0, 64), "b": entry("F32", [16], 32, 96)}
    refused(tmp_path, container(overlap, bytes(96)), errors.OverlapError, "'a' and 'b' share bytes")
    hole = {"a": entry("F32", [16], 0, 64), "b": entry("F32", [4], 80, 96)}
    refused(tmp_path, container(hole, bytes(96)), errors.HoleError, "16 bytes before tensor 'b'")
    refused(tmp_path, container({"a": entry("F32", [4], 8, 24)}, bytes(24)), errors.HoleError, "8 bytes before")
    refused(tmp_path, container({"a": entry("F32", [4], 0, 16)}, bytes(20)), errors.HoleError, "4 bytes after the last")


@pytest.mark.parametrize("dtype", ["Q9", "f32", "", None, 4, ["F32"], {"F32": 1}])
def test_s04_unknown_types(tmp_path, dtype):
    header = {"w": {"dtype": dtype, "shape": [4], "data_offsets": [2**60, 2**60 + 16]}}
    refused(tmp_path, container(header, bytes(16)), errors.TensorTypeError, "'w': unknown dtype")


@pytest.mark.parametrize("shape", [[-1], [2.0], None, "4", [True], [[4]], {"0": 4}])
def test_shapes_that_are_none(tmp_path, shape):
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}
    refused(tmp_path, container(header, bytes(16)), errors.TensorShapeError, "'w': shape")


@pytest.mark.parametrize("shape", [[5], [2, 3], [2**62, 2**62], [2**63, 2], [0]])
def test_shapes_that_contradict_the_bytes(tmp_path, shape):
    header = {"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}
    refused(tmp_path, container(header, bytes(16)), errors.TensorShapeError, r"takes \d+ bytes, data_offsets give 16")


def test_truncated_files(tmp_path):
    raw = file_of(weights("a", "b", "c"))
    refused(tmp_path, raw[:-1], errors.TensorRangeError, f"tensor 'c' needs bytes up to {len(raw)}, the file has")
    refused(tmp_path, raw[:-200], errors.TensorRangeError, "tensor 'b' needs bytes")
    refused(tmp_path, raw[:40], errors.CheckpointTruncatedError, "the header needs")
    refused(tmp_path, raw[:7], errors.CheckpointTruncatedError, "7 bytes")
    refused(tmp_path, b"", errors.CheckpointTruncatedError, "0 bytes")


@pytest.mark.parametrize(
    ("raw", "error", "match"),
    [
        (container({}, b"", length=2**63), errors.CountError, "claims a header"),
        (container({}, b"", length=100_000_001), errors.CountError, "claims a header"),
        (container(b" {}", b""), errors.HeaderFormatError, "does not begin with"),
        (container(b"[1]", b""), errors.HeaderFormatError, "does not begin with"),
        (container(b"{", b""), errors.HeaderFormatError, "not JSON"),
        (container(b'{"\xff": 1}', b""), errors.HeaderFormatError, "not JSON"),
        (container(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", b""), errors.HeaderFormatError, "not JSON"),
        (container(b'{"a": ' + b"9" * 5000 + b"}", b""), errors.HeaderFormatError, "not JSON"),
        (container({"w": 3}, b""), errors.HeaderFormatError, "needs exactly"),
        (container({"w": {"dtype": "F32", "shape": [0]}}, b""), errors.HeaderFormatError, "needs exactly"),
        (container({"w": entry("F32", [1], 0, 4) | {"x": 1}}, bytes(4)), errors.HeaderFormatError, "needs exactly"),
        (container(b'{"w": {}, "w": {}}', b""), errors.DuplicateError, "key 'w' occurs twice"),
        (container({}, b""), errors.MissingTensorError, "holds no tensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", errors.LfsPointerError, "git lfs pull"),
        (b"PK\x03\x04" + bytes(100), errors.HeaderFormatError, "not a safetensors file"),
    ],
)
def test_files_that_are_something_else(tmp_path, raw, error, match):
    refused(tmp_path, raw, error, match)


def sharded(tmp_path, shards, weight_map=None, **more):
    files = {name: file_of(tensors) for name, tensors in shards.items()}
    truth = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    return folder(tmp_path / "m", {**files, INDEX: {"metadata": {}, "weight_map": weight_map or truth}, **more})


A, B = weights("a", "b"), weights("c", seed=1)


def test_shards(tmp_path):
    path = sharded(tmp_path, {"one.safetensors": A, "two.safetensors": B})
    checkpoint = open_checkpoint(path)
    for name, (_, w) in {**A, **B}.items():
        assert checkpoint.read(name).tobytes() == w.tobytes()


def test_s07_missing_shards_are_listed_before_any_work(tmp_path):
    truth = {"a": "one.safetensors", "b": "three.safetensors", "c": "two.safetensors"}
    path = sharded(tmp_path, {"one.safetensors": weights("a")}, truth)
    with pytest.raises(errors.MissingShardError, match=r"not there: three\.safetensors, two\.safetensors"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("weight_map", "error", "match"),
    [
        ({"a": "one.safetensors", "b": "one.safetensors"}, errors.SplitError, "does not list tensors .*: c"),
        ({"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors", "d": "one.safetensors"},
         errors.MissingTensorError, "not in the file it names: d"),
        ({"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"}, errors.MissingTensorError, ": a"),
        ({"a": "../m/one.safetensors"}, errors.SplitError, "not a file name"),
        ({"a": "/etc/passwd"}, errors.SplitError, "not a file name"),
        ({"a": ""}, errors.SplitError, "not a file name"),
        ({"a": ".."}, errors.SplitError, "not a file name"),
        ({"a": 3}, errors.SplitError, "not a file name"),
        ([], errors.SplitError, "no weight_map"),
    ],
)  # fmt: skip
def test_indices_that_are_wrong(tmp_path, weight_map, error, match):
    path = sharded(tmp_path, {"one.safetensors": A, "two.safetensors": B})
    if isinstance(weight_map, dict) and set(weight_map.values()) == {"one.safetensors"}:
        weight_map = weight_map | {"c": "two.safetensors"}
        (path / "two.safetensors").write_bytes(file_of(weights("c", "e")))
        match = ": e"
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(error, match=match):
        open_checkpoint(path)


def test_g12_one_name_in_two_shards(tmp_path):
    path = sharded(tmp_path, {"one.safetensors": A, "two.safetensors": weights("c", "a")})
    with pytest.raises(errors.DuplicateError, match=r"'a' occurs twice: in one\.safetensors and in two"):
        open_checkpoint(path)


def test_several_files_without_an_index(tmp_path):
    path = folder(tmp_path / "m", {"a.safetensors": file_of(A), "b.safetensors": file_of(B)})
    with pytest.raises(errors.SplitError, match="2 safetensors files but no"):
        open_checkpoint(path)
    (path / "b.safetensors").unlink()
    assert set(open_checkpoint(path).tensors) == {"a", "b"}


def test_folders_without_weights(tmp_path):
    path = folder(tmp_path / "m", {})
    with pytest.raises(errors.NotACheckpointError, match=r"no safetensors file$"):
        open_checkpoint(path)
    (path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(errors.NotACheckpointError, match="convert them to safetensors"):
        open_checkpoint(path)


TEXT = {"model_type": "gemma3_text", "vocab_size": 6, "hidden_size": 8}
WRAPPED = {"model_type": "gemma3", "text_config": TEXT, "vision_config": {"hidden_size": 4}, "eos_token_id": [1, 2]}


@pytest.mark.parametrize("style", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight"])
def test_the_text_part_of_a_multimodal_checkpoint(tmp_path, style, head):
    names = (f"{style}embed_tokens.weight", f"{style}layers.0.mlp.up_proj.weight", head)
    towers = ("vision_tower.x.weight", "model.vision_tower.y.weight", "multi_modal_projector.z")
    path = folder(tmp_path / "m", {SINGLE: file_of(weights(*names, *towers))}, WRAPPED)
    checkpoint = open_checkpoint(path)
    assert sorted(checkpoint.tensors) == [
        "lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
    ]  # fmt: skip
    assert checkpoint.tensors["lm_head.weight"].name == "lm_head.weight"
    assert checkpoint.architecture == "gemma3_text"
    assert checkpoint.config.require("hidden_size") == 8
    assert checkpoint.generation["eos_token_ids"] == [1, 2]
    expected = weights(*names, *towers)[names[0]][1]
    assert checkpoint.read("model.embed_tokens.weight").tobytes() == expected.tobytes()


def test_a_part_that_is_no_known_tower_stays_and_is_refused_later(tmp_path):
    names = ("language_model.model.norm.weight", "speech_encoder.x.weight")
    path = folder(tmp_path / "m", {SINGLE: file_of(weights(*names))}, WRAPPED)
    assert sorted(open_checkpoint(path).tensors) == ["model.norm.weight", "speech_encoder.x.weight"]


def test_two_text_tensors_of_one_name(tmp_path):
    names = ("language_model.model.norm.weight", "model.language_model.norm.weight")
    path = folder(tmp_path / "m", {SINGLE: file_of(weights(*names))}, WRAPPED)
    with pytest.raises(errors.DuplicateError, match=r"called 'model\.norm\.weight'"):
        open_checkpoint(path)


def test_config_files_that_are_wrong(tmp_path):
    good = {SINGLE: file_of(A)}
    gptq = json.dumps({**CONFIG, "quantization_config": {"quant_method": "gptq"}}).encode()
    for raw, error, match in [
        (b"", errors.ConfigError, "config.json: not JSON"),
        (b"[]", errors.ConfigError, "config.json: a JSON list"),
        (b'{"a": 1, "a": 2}', errors.DuplicateError, "key 'a' occurs twice"),
        (b'{"vocab_size": 3}', errors.ConfigError, "model_type is missing"),
        (b'{"model_type": "x", "text_config": 3}', errors.ConfigError, "text_config"),
        (gptq, errors.UnsupportedError, "gptq"),
    ]:
        path = folder(tmp_path / "m", {**good, "config.json": raw})
        with pytest.raises(error, match=match):
            open_checkpoint(path)
