"""Every family's graph in the reference executor against transformers, on tiny random models in float32."""

import numpy as np
import pytest

from goinfer.compiler.family import build_model
from goinfer.compiler.interpret import Trace, run
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.families.registry import FAMILIES, family
from tests.families.memory_checkpoint import MemoryCheckpoint

pytestmark = pytest.mark.oracle

BAR = 2e-5  # relative L2 error of a position; measured: below 3.5e-6 on every case
CASES = [(name, tiny) for name in FAMILIES for tiny in family(name).parity.tiny]
IDS = np.random.default_rng(5).integers(3, 260, 40)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The worst position's relative L2 error."""
    gap = np.linalg.norm(got.astype(np.float64) - want, axis=-1)
    return float((gap / np.linalg.norm(want.astype(np.float64), axis=-1)).max())


def oracle(name: str, tiny: str):
    """A random transformers model of the case, in eager attention (sdpa ignores soft caps)."""
    import torch
    import transformers

    parity = family(name).parity
    config = getattr(transformers, parity.config_class)(**parity.tiny[tiny])
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, parity.model_class)(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def transformers_trace(model, ids: np.ndarray) -> Trace:
    """Logits and hidden states; transformers leaves out the last layer's own output, so a hook takes it."""
    import torch

    last = []
    model.model.layers[-1].register_forward_hook(lambda m, i, out: last.append(out))
    with torch.no_grad():
        out = model(torch.tensor(ids)[None], output_hidden_states=True, use_cache=False)
    final = last[0][0] if isinstance(last[0], tuple) else last[0]
    states = [*out.hidden_states[:-1], final, out.hidden_states[-1]]
    hidden = np.stack([s.reshape(len(ids), -1).numpy() for s in states])
    return Trace(out.logits[0].numpy(), hidden)


def safetensors_of(model) -> MemoryCheckpoint:
    """What saving the model as safetensors would hold: a tied head has no tensor."""
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del arrays["lm_head.weight"]
    return MemoryCheckpoint("safetensors", model.config.to_dict(), arrays)


def gguf_of(name: str, model) -> MemoryCheckpoint:
    """The same model under GGUF names, rows and norms as GGUF files hold them, written from their description."""
    config = model.config.to_dict()
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    rows = family(name).tensors
    arrays = {}
    for source, array in safetensors_of(model).arrays.items():
        for row in rows:
            for layer in range(config["num_hidden_layers"]):
                if row.hf.replace("{i}", str(layer)) == source:
                    arrays[row.gguf.replace("{i}", str(layer))] = _as_gguf(name, source, array, heads)
    for key in ("attention_bias", "mlp_bias", "tie_word_embeddings", "vocab_size", "layer_types"):
        config.pop(key, None)
    if name == "gemma3_text" and config["query_pre_attn_scalar"] == config["head_dim"]:
        config.pop("query_pre_attn_scalar")
    return MemoryCheckpoint("gguf", config, arrays)


def _as_gguf(name: str, source: str, array: np.ndarray, heads: dict[str, int]) -> np.ndarray:
    projection = source.split(".")[-2]
    if name == "llama" and projection in heads:
        n, rest = heads[projection], array.shape[1:]
        return array.reshape(n, 2, array.shape[0] // n // 2, *rest).swapaxes(1, 2).reshape(array.shape)
    return array + 1 if name == "gemma3_text" and projection.endswith("norm") else array


def check(checkpoint: MemoryCheckpoint, name: str, want: Trace) -> None:
    built = build_model(family(name), checkpoint)
    unfused = run(built.graph.view(), IDS, built.weights.read)
    run_passes(built.graph)
    for got in (unfused, run(built.graph.view(), IDS, built.weights.read)):
        assert got.hidden.shape == want.hidden.shape
        errors = [relative(g, w) for g, w in zip(got.hidden, want.hidden, strict=True)]
        assert max(errors) <= BAR, errors
        assert relative(got.logits, want.logits) <= BAR
        assert np.array_equal(got.logits.argmax(1), want.logits.argmax(1))


@pytest.mark.parametrize(("name", "tiny"), CASES)
def test_safetensors_names_match_transformers(name: str, tiny: str) -> None:
    model = oracle(name, tiny)
    check(safetensors_of(model), name, transformers_trace(model, IDS))


# GGUF metadata of qwen2 cannot say that there is a sliding window.
@pytest.mark.parametrize(("name", "tiny"), [case for case in CASES if case != ("qwen2", "window")])
def test_gguf_names_match_transformers(name: str, tiny: str) -> None:
    model = oracle(name, tiny)
    check(gguf_of(name, model), name, transformers_trace(model, IDS))
