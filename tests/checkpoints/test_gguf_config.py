"""GGUF metadata as a config: the tables, their contradictions, and what stays to be refused."""

import pytest

from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.checkpoints.gguf_config import translate
from goinfer.compiler.errors import ConfigError, UnsupportedError
from tests.checkpoints.gguf_forge import F32_VALUE, MODEL, U32, Value, model

COMMON = {
    "context_length": 128, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip
EXPECTED = {
    "max_position_embeddings": 128, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "vocab_size": 20,
}  # fmt: skip


def translated(architecture, **more):
    names = {key.replace("__", "."): value for key, value in more.items()}
    metadata = {f"{architecture}.{key}": value for key, value in (COMMON | names).items()}
    out = translate(architecture, {"general.name": "x", "tokenizer.ggml.model": "gpt2", **metadata}, 20)
    assert out.pop("model_type") == architecture
    return {key: value for key, value in out.items() if EXPECTED.get(key) != value}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_the_common_keys(architecture):
    assert translated(architecture) == {}


def test_llama():
    assert translated("llama", rope__dimension_count=24, rope__freq_base=5e5, vocab_size=20) == {
        "head_dim": 24, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }  # fmt: skip
    scaled = translated(
        "llama", rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=32,
        rope__scaling__finetuned=True, rope__freq_base=1e4,
    )  # fmt: skip
    assert scaled["rope_parameters"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4,
    }  # fmt: skip
    none = translated("llama", rope__scaling__type="none")
    assert none["rope_parameters"] == {"rope_type": "default"}


def test_gemma3_has_a_rope_for_each_kind_of_layer():
    out = translated(
        "gemma3", attention__key_length=256, attention__value_length=256, attention__sliding_window=512,
        rope__freq_base=1e6, rope__scaling__type="linear", rope__scaling__factor=8.0,
    )  # fmt: skip
    assert out == {
        "head_dim": 256, "sliding_window": 512,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_type": "default"},
        },
    }  # fmt: skip
    other = translated("gemma3", rope__freq_base=1e6, rope__freq_base_swa=2e4)
    assert other["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 2e4}


def test_q03_head_size_comes_from_the_file():
    assert translated("llama", rope__dimension_count=24, attention__key_length=24)["head_dim"] == 24
    with pytest.raises(UnsupportedError, match=r"value_length'.*head_dim"):
        translated("llama", attention__key_length=24, attention__value_length=32)
    with pytest.raises(UnsupportedError, match="head_dim"):
        translated("llama", attention__key_length=24, rope__dimension_count=12)


def test_lists_of_one_value_are_that_value():
    assert translated("llama", attention__head_count_kv=[2, 2]) == {}
    assert translated("llama", attention__head_count_kv=[2, 1]) == {"num_key_value_heads": [2, 1]}


def test_floats_are_the_shortest_decimal_of_a_float32():
    import numpy as np

    assert translated("llama", attention__layer_norm_rms_epsilon=float(np.float32(1e-5))) == {"rms_norm_eps": 1e-5}
    assert translated("llama", rope__freq_base=float(np.float32(0.1)))["rope_parameters"]["rope_theta"] == 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none(value):
    with pytest.raises(ConfigError, match=r"rope\.freq_base"):
        translated("llama", rope__freq_base=value)


@pytest.mark.parametrize("key", ["llama.expert_count", "llama.rope.scaling.alpha", "mystery.key", "qwen2.block_count"])
def test_keys_that_no_table_knows_are_refused_by_name(tmp_path, key):
    checkpoint = open_checkpoint(model((key, Value(U32, 8))).write(tmp_path / "m.gguf"))
    known = set(checkpoint.config) - {key}
    with pytest.raises(UnsupportedError, match=rf"m\.gguf: unknown config key {key.replace('.', '[.]')}:"):
        checkpoint.config.finish(known)


def test_an_unknown_architecture_still_opens_so_that_it_can_be_named(tmp_path):
    forged = model(("general.architecture", Value(8, "mamba9")), ("mamba9.block_count", Value(U32, 1)))
    checkpoint = open_checkpoint(forged.write(tmp_path / "m.gguf"))
    assert checkpoint.architecture == "mamba9"
    assert checkpoint.config.require("num_hidden_layers") == 1


def test_vocab_size_is_the_number_of_rows(tmp_path):
    assert open_checkpoint(MODEL.write(tmp_path / "a.gguf")).config.require("vocab_size") == 20
    forged = model(("llama.vocab_size", Value(U32, 17)), ("llama.rope.scaling.factor", Value(F32_VALUE, 1.0)))
    assert open_checkpoint(forged.write(tmp_path / "b.gguf")).config.require("vocab_size") == 20
