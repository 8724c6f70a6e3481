"""What each config key does: spellings of one model, ties, head sizes, caps, windows, and refusals by name."""

from typing import Any

import numpy as np
import pytest

from goinfer.compiler.checkpoints.tensor_map import SourceMap
from goinfer.compiler.errors import CheckpointError, ConfigError, MissingTensorError, UnsupportedError
from goinfer.compiler.graph import KvLayer
from goinfer.families.registry import ARCHITECTURES, FAMILIES, family
from tests.families.memory_checkpoint import MemoryCheckpoint

LLAMA, QWEN2, GEMMA3 = (family(n).parity.tiny["plain"] for n in ("llama", "qwen2", "gemma3_text"))


def configure(name: str, config: dict[str, Any], *, kind: str = "safetensors", head: bool = False) -> Any:
    """The family's config from a checkpoint that has an embedding, and a head if asked; unknown keys refused."""
    embed, output = (
        ("model.embed_tokens.weight", "lm_head.weight")
        if kind == "safetensors"
        else ("token_embd.weight", "output.weight")
    )
    shape = np.zeros((config["vocab_size"], config["hidden_size"]), np.float32)
    arrays = {embed: shape} | ({output: shape} if head else {})
    store = MemoryCheckpoint(kind, config, arrays)
    made = family(name).configure(store.config, SourceMap.match(store, family(name).tensors, ()))
    store.config.finish(family(name).irrelevant)
    return made


PLAIN_ROPE = {k: v for k, v in LLAMA.items() if k != "rope_theta"}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default", "type": None}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 5e5}, "rope_theta": None, "rope_scaling": None},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "factor": 1.0}},
    ],
)
def test_spellings_of_one_rope(spelling: dict[str, Any]) -> None:
    want = configure("llama", LLAMA | {"rope_theta": 5e5})
    assert configure("llama", PLAIN_ROPE | spelling) == want
    assert want.ropes["rope"].inv_freq[1] < configure("llama", LLAMA).ropes["rope"].inv_freq[1]


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 10000, "beta_fast": None}},
    ],
)
def test_spellings_of_one_scaled_rope(spelling: dict[str, Any]) -> None:
    plain, scaled = configure("llama", LLAMA), configure("llama", PLAIN_ROPE | spelling)
    halves = [f / 2 for f in plain.ropes["rope"].inv_freq]
    assert list(scaled.ropes["rope"].inv_freq) == halves


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
def test_an_unknown_rope_type_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedError, match=f"rope type '{kind}' is not supported"):
        configure("llama", LLAMA | {"rope_scaling": {"rope_type": kind, "factor": 2.0}})


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"rope_type": "linear"}, "rope type linear: key factor is missing"),
        ({"rope_type": "linear", "factor": 2.0, "odd": 1}, "rope type linear: unknown key odd"),
        ({"rope_type": "llama3", "factor": 8.0}, "rope type llama3: key low_freq_factor is missing"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "unknown key partial_rotary_factor"),
        ({"rope_type": "linear", "factor": 0.0}, "factor 0.0 is not a positive finite number"),
        ({"rope_type": "linear", "factor": "2"}, "factor '2' is not a positive finite number"),
        ({"rope_type": "default", "rope_theta": -1.0}, "rope_theta -1.0 is not a positive finite number"),
    ],
)
def test_rope_entries_are_checked(entry: dict[str, Any], why: str) -> None:
    with pytest.raises((UnsupportedError, ConfigError), match=why):
        configure("llama", LLAMA | {"rope_scaling": entry})


@pytest.mark.parametrize("name", FAMILIES)
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match="residual_multiplier"):
        configure(name, dict(family(name).parity.tiny["plain"]) | {"residual_multiplier": 0.22})


@pytest.mark.parametrize("name", FAMILIES)
def test_bookkeeping_keys_are_accepted(name: str) -> None:
    extra = {
        "architectures": ["X"],
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "use_cache": True,
        "eos_token_id": 2,
    }
    configure(name, dict(family(name).parity.tiny["plain"]) | extra)


@pytest.mark.parametrize(
    ("kind", "flag", "head", "tied"),
    [
        ("safetensors", True, False, True),
        ("safetensors", True, True, True),
        ("safetensors", False, True, False),
        ("safetensors", None, True, False),
        ("safetensors", None, False, True),
        ("gguf", None, False, True),
        ("gguf", None, True, False),
    ],
)
def test_a_tied_head_is_shared(kind: str, flag: bool | None, head: bool, tied: bool) -> None:
    config = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"} | {"tie_word_embeddings": flag}
    assert configure("llama", config, kind=kind, head=head).tied is tied


def test_an_untied_model_without_a_head_is_refused() -> None:
    with pytest.raises(MissingTensorError, match="missing tensor: output head"):
        configure("llama", LLAMA | {"tie_word_embeddings": False})


def test_gemma3_is_tied_unless_it_says_otherwise() -> None:
    assert configure("gemma3_text", GEMMA3, head=True).tied
    assert not configure("gemma3_text", GEMMA3 | {"tie_word_embeddings": False}, head=True).tied


def test_head_dim_is_not_assumed() -> None:
    made = configure("llama", LLAMA | {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 24})
    assert made.head_dim == 24 and made.ropes["rope"].dim == 24 and len(made.ropes["rope"].inv_freq) == 12
    assert made.layers[0].scale == 24**-0.5
    made = configure("llama", {k: v for k, v in LLAMA.items() if k != "head_dim"} | {"hidden_size": 96})
    assert made.head_dim == 16


def test_kv_heads_default_to_heads() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}
    assert configure("llama", config).layers[0].n_kv_heads == LLAMA["num_attention_heads"]


@pytest.mark.parametrize(("cap", "got"), [(None, 0.0), (0, 0.0), (0.0, 0.0), (5, 5.0), (50.0, 50.0)])
def test_logit_softcap(cap: float | None, got: float) -> None:
    assert configure("gemma3_text", GEMMA3 | {"final_logit_softcapping": cap}).logit_softcap == got


@pytest.mark.parametrize("cap", [-1, float("nan"), float("inf"), True, "5"])
def test_a_bad_softcap_is_refused(cap: object) -> None:
    with pytest.raises(ConfigError, match="config key final_logit_softcapping"):
        configure("gemma3_text", GEMMA3 | {"final_logit_softcapping": cap})


def test_gemma3_refuses_what_transformers_does_not_apply() -> None:
    with pytest.raises(UnsupportedError, match="attn_logit_softcapping"):
        configure("gemma3_text", GEMMA3 | {"attn_logit_softcapping": 50.0})
    configure("gemma3_text", GEMMA3 | {"attn_logit_softcapping": None})
    with pytest.raises(UnsupportedError, match="use_bidirectional_attention"):
        configure("gemma3_text", GEMMA3 | {"use_bidirectional_attention": True})


def windows(made: Any) -> list[int]:
    return [state.window for state in family("llama").kv_layers(made)]


def test_gemma3_windows() -> None:
    assert windows(configure("gemma3_text", GEMMA3)) == [8, 8, 8, 8, 8, 0, 8]
    assert windows(configure("gemma3_text", GEMMA3 | {"sliding_window_pattern": 3})) == [8, 8, 0, 8, 8, 0, 8]
    kinds = ["full_attention"] * 6 + ["sliding_attention"]
    made = configure("gemma3_text", GEMMA3 | {"layer_types": kinds})
    assert windows(made) == [0] * 6 + [8]
    assert [layer.rope for layer in made.layers] == ["full"] * 6 + ["sliding"]
    with pytest.raises(ConfigError, match="layer_types: 6 entries for 7 layers"):
        configure("gemma3_text", GEMMA3 | {"layer_types": kinds[1:]})
    with pytest.raises(UnsupportedError, match="layer_types: 'chunked_attention'"):
        configure("gemma3_text", GEMMA3 | {"layer_types": ["chunked_attention"] * 7})


def test_gemma3_ropes_differ_by_layer_kind() -> None:
    made = configure("gemma3_text", GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    plain = configure("gemma3_text", GEMMA3)
    assert made.ropes["sliding"] == plain.ropes["sliding"]
    assert [f * 8 for f in made.ropes["full"].inv_freq] == list(plain.ropes["full"].inv_freq)
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    bare = {k: v for k, v in GEMMA3.items() if not k.startswith("rope")}
    assert configure("gemma3_text", bare | {"rope_parameters": nested}).ropes == plain.ropes
    assert configure("gemma3_text", bare).ropes == plain.ropes


@pytest.mark.parametrize(
    ("layers", "scalar", "want"),
    [(7, None, 24), (7, 20, 20), (62, None, 64 // 4), (62, 24, 24)],
)
def test_gemma3_query_scale(layers: int, scalar: int | None, want: int) -> None:
    config = GEMMA3 | {"num_hidden_layers": layers, "query_pre_attn_scalar": scalar}
    assert configure("gemma3_text", config, kind="gguf").layers[0].scale == want**-0.5


def test_gemma3_embedding_scale_is_float32() -> None:
    made = configure("gemma3_text", GEMMA3 | {"hidden_size": 640})
    assert made.embed_scale == float(np.float32(640**0.5)) != 640**0.5


def test_qwen2_windows() -> None:
    on = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    assert windows(configure("qwen2", QWEN2 | on)) == [0, 8, 8]
    assert windows(configure("qwen2", QWEN2 | on | {"use_sliding_window": False})) == [0, 0, 0]
    assert windows(configure("qwen2", QWEN2 | on | {"sliding_window": None})) == [0, 0, 0]
    assert windows(configure("qwen2", QWEN2 | {"use_sliding_window": True, "sliding_window": 8})) == [0, 0, 0]
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert windows(configure("qwen2", QWEN2 | on | {"layer_types": kinds})) == [8, 0, 0]
    with pytest.raises(ConfigError, match="sliding layers, but the sliding window is off"):
        configure("qwen2", QWEN2 | {"layer_types": kinds, "sliding_window": 8})


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size"])
@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_are_required_and_positive(name: str, key: str) -> None:
    config = dict(family(name).parity.tiny["plain"])
    embedding = config["vocab_size"], config["hidden_size"]
    for change in ({key: None}, {key: 0}, {key: -4}, {key: 2.5}, {key: True}, {key: "8"}):
        store = MemoryCheckpoint(
            "safetensors", config | change, {"model.embed_tokens.weight": np.zeros(embedding, np.float32)}
        )
        with pytest.raises(CheckpointError, match=key):
            family(name).configure(store.config, SourceMap.match(store, family(name).tensors, ()))


@pytest.mark.parametrize(("act", "fn"), [("silu", "silu"), ("swish", "silu"), ("gelu", "gelu_erf"), ("relu", "relu")])
def test_activation_names(act: str, fn: str) -> None:
    assert configure("llama", LLAMA | {"hidden_act": act}).act == fn


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="config key hidden_act: activation 'xielu'"):
        configure("llama", LLAMA | {"hidden_act": "xielu"})


def test_registry() -> None:
    assert family("gemma3") is family("gemma3_text")
    assert {family(a).name for a in ARCHITECTURES} == set(FAMILIES)
    with pytest.raises(UnsupportedError, match="architecture 'gpt_new' is not supported; known: gemma3, gemma3_text"):
        family("gpt_new")


@pytest.mark.parametrize("name", FAMILIES)
def test_kv_layers_state_each_layer(name: str) -> None:
    config = dict(family(name).parity.tiny["plain"])
    made = configure(name, config)
    states = family(name).kv_layers(made)
    assert len(states) == config["num_hidden_layers"]
    assert all(isinstance(s, KvLayer) and s.n_kv_heads == config["num_key_value_heads"] for s in states)
    assert all(s.head_dim == made.head_dim for s in states)
