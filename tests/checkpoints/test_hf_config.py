"""One model in every spelling of its config: the same normalised form (BUGS P02)."""

import pytest

from goinfer.compiler.checkpoints.hf_config import normalised
from goinfer.compiler.errors import ConfigError, UnsupportedError

BASE = {"model_type": "llama", "hidden_size": 64}
DEFAULT = {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "factor": None}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": None}, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5, "type": "default"}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
        {"rope_parameters": None, "rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": {"type": "none"}},
    ],
)
def test_p02_a_default_rope(spelling):
    assert normalised(BASE | spelling) == BASE | {"rope_parameters": DEFAULT}


LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4.0}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "type": "old", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
        {"rope_parameters": {"type": "linear", "factor": 4.0, "rope_theta": 1e4, "beta_fast": None}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 1e4},
        {"rope_parameters": LINEAR, "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": DEFAULT | {"rope_theta": 1e4}, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ],
)
def test_p02_a_scaled_rope(spelling):
    assert normalised(BASE | spelling) == BASE | {"rope_parameters": LINEAR}


def test_no_rope_at_all_stays_absent():
    assert normalised(BASE) == BASE
    assert normalised(BASE | {"rope_scaling": None, "rope_parameters": None}) == BASE
    assert normalised(BASE | {"rope_scaling": {"type": "linear", "factor": 2.0}}) == BASE | {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0}
    }


def test_su_is_longrope():
    out = normalised(BASE | {"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}})
    assert out["rope_parameters"]["rope_type"] == "longrope"


@pytest.mark.parametrize(
    ("spelling", "match"),
    [
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4}, r"rope_parameters\.rope_theta is 1000000\.0"),
        ({"rope_parameters": LINEAR, "rope_scaling": {"type": "linear", "factor": 8.0}}, "factor is 4.0"),
        ({"rope_parameters": LINEAR, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'linear'"),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling: has factor but no rope_type"),
        ({"rope_parameters": {"factor": 4.0, "rope_theta": 1e4}}, "has factor but no rope_type"),
        ({"rope_scaling": "linear"}, "rope_scaling: 'linear' is not an object"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 3}}, r"rope_parameters\.full_attention: 3"),
    ],
)
def test_spellings_that_contradict_each_other(spelling, match):
    with pytest.raises(ConfigError, match=match):
        normalised(BASE | spelling)


GEMMA = {"model_type": "gemma3_text", "hidden_size": 64}
LAYERED = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": LAYERED},
        {"rope_parameters": {**LAYERED, "sliding_attention": {"rope_theta": 1e4}}},
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "rope_local_base_freq": 1e4},
    ],
)
def test_p02_one_rope_for_each_kind_of_layer(spelling):
    assert normalised(GEMMA | spelling) == GEMMA | {"rope_parameters": LAYERED}


def test_layers_of_a_family_without_a_key_of_its_own_share_the_base():
    out = normalised(BASE | {"rope_theta": 5e5, "rope_parameters": {"full_attention": {"rope_type": "default"}}})
    assert out["rope_parameters"] == {"full_attention": DEFAULT, "sliding_attention": DEFAULT}


def test_a_kind_of_layer_that_is_not_known():
    with pytest.raises(UnsupportedError, match=r"rope_parameters\.strange"):
        normalised(GEMMA | {"rope_parameters": {**LAYERED, "strange": {}}})


@pytest.mark.parametrize(
    "spelling", [{"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}, {"dtype": None, "torch_dtype": "bfloat16"}]
)
def test_dtype(spelling):
    assert normalised(BASE | spelling) == BASE | {"dtype": "bfloat16"}


def test_the_text_model_of_a_multimodal_config():
    wrapped = {
        "model_type": "gemma3", "text_config": GEMMA | {"eos_token_id": 1}, "vision_config": {"x": 1},
        "image_token_index": 4, "eos_token_id": [1, 2], "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    assert normalised(wrapped) == GEMMA | {"eos_token_id": 1, "tie_word_embeddings": True}


@pytest.mark.parametrize("where", ["top", "text"])
def test_quantised_folders_are_refused_by_method(where):
    quantised = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    config = BASE | quantised if where == "top" else {"model_type": "x", "text_config": BASE, **quantised}
    with pytest.raises(UnsupportedError, match="awq"):
        normalised(config)
    assert normalised(BASE | {"quantization_config": None}) == BASE
