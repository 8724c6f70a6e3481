"""Gemma 3 text models: norms on both sides of each branch, q/k norms, windows on five layers of six, two RoPE bases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.tensor_map import PLUS_ONE, SourceMap
from goinfer.compiler.errors import UnsupportedError
from goinfer.compiler.family import Family, Parity
from goinfer.families import blocks, fields, rope

if TYPE_CHECKING:
    from goinfer.compiler.graph import GraphBuilder

# The vision tower of a multimodal checkpoint takes no part in text.
IGNORED = ("vision_tower.*", "model.vision_tower.*", "multi_modal_projector.*", "model.multi_modal_projector.*")

TENSORS = (
    *blocks.outer_tensors(norm=PLUS_ONE),
    blocks.layer_tensor("attn_norm.weight", "input_layernorm.weight", norm=PLUS_ONE),
    blocks.layer_tensor("post_attention_norm.weight", "post_attention_layernorm.weight", norm=PLUS_ONE),
    blocks.layer_tensor("ffn_norm.weight", "pre_feedforward_layernorm.weight", norm=PLUS_ONE),
    blocks.layer_tensor("post_ffw_norm.weight", "post_feedforward_layernorm.weight", norm=PLUS_ONE),
    blocks.layer_tensor("attn_q_norm.weight", "self_attn.q_norm.weight", norm=PLUS_ONE),
    blocks.layer_tensor("attn_k_norm.weight", "self_attn.k_norm.weight", norm=PLUS_ONE),
    *blocks.linear_tensors(),
)


def build(g: GraphBuilder, c: blocks.Decoder) -> None:
    """Like pre_norm_decoder, with a second norm on each branch before the residual add."""
    x = blocks.embedding(g, c)
    for i in range(c.n_layers):
        y = blocks.attention(g, g.rms_norm(x, f"blk.{i}.attn_norm.weight", c.eps), i, c)
        y = g.rms_norm(y, f"blk.{i}.post_attention_norm.weight", c.eps)
        x = g.add(x, y, f"blk.{i}.attn_residual")
        y = blocks.gated_mlp(g, g.rms_norm(x, f"blk.{i}.ffn_norm.weight", c.eps), i, c)
        y = g.rms_norm(y, f"blk.{i}.post_ffw_norm.weight", c.eps)
        x = g.add(x, y, f"blk.{i}.ffn_residual")
        g.hidden(x, i + 1)
    blocks.logits(g, x, c)


def windows(view: ConfigView, n_layers: int) -> list[int]:
    """The window of each layer: every sixth layer (sliding_window_pattern) sees everything."""
    pattern = fields.size(view, "sliding_window_pattern", fields.size(view, "_sliding_window_pattern", 6))
    kinds, window = view.get("layer_types"), fields.size(view, "sliding_window", 4096)
    if kinds is None:
        kinds = ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(n_layers)]
    return fields.layer_windows(kinds, n_layers, window)


def ropes(view: ConfigView, dim: int, context: int) -> dict[str, rope.RopeTable]:
    """Full layers: rope_theta with the config's scaling; sliding layers: their own base, never scaled."""
    nested = dict(view.get("rope_parameters") or {})
    theta, local = view.get("rope_theta"), view.get("rope_local_base_freq")
    scaling = dict(view.get("rope_scaling") or {})
    full = {"rope_theta": theta or 1_000_000.0} | scaling | dict(nested.get("full_attention") or {})
    sliding = {"rope_theta": local or 10_000.0} | dict(nested.get("sliding_attention") or {})
    return {
        "full": rope.table(full, dim, context=context),
        "sliding": rope.table(sliding, dim, context=context),
    }


def query_scale(view: ConfigView, head_dim: int, per_head: int, n_layers: int) -> float:
    """query_pre_attn_scalar ** -0.5. GGUF lacks the key: it is head_dim, but in the 62-layer 27B hidden / heads."""
    return fields.number(view, "query_pre_attn_scalar", per_head if n_layers == 62 else head_dim) ** -0.5


def configure(view: ConfigView, sources: SourceMap) -> blocks.Decoder:
    """Read a gemma3_text config (or its GGUF form)."""
    hidden, n_heads = fields.size(view, "hidden_size"), fields.size(view, "num_attention_heads")
    n_layers = fields.size(view, "num_hidden_layers")
    n_kv_heads, head_dim = fields.size(view, "num_key_value_heads", 4), fields.size(view, "head_dim", 256)
    context = fields.size(view, "max_position_embeddings", 131072)
    if fields.flag(view, "use_bidirectional_attention"):
        raise UnsupportedError("config key use_bidirectional_attention: only causal models are supported")
    scale = query_scale(view, head_dim, hidden // n_heads, n_layers)
    if fields.soft_cap(view, "attn_logit_softcapping"):
        # transformers reads the key and never applies it, so nobody can say what such a model computes.
        raise UnsupportedError("config key attn_logit_softcapping: gemma 3 models have no cap on attention scores")
    bias = fields.flag(view, "attention_bias")
    layers = tuple(
        blocks.Attention(
            n_heads,
            n_kv_heads,
            head_dim,
            scale,
            "sliding" if window else "full",
            window,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=True,
        )
        for window in windows(view, n_layers)
    )
    used = {layer.rope for layer in layers}
    return blocks.Decoder(
        vocab=fields.vocabulary(view, sources),
        hidden=hidden,
        n_layers=n_layers,
        context=context,
        eps=fields.number(view, "rms_norm_eps", 1e-6),
        ffn=fields.size(view, "intermediate_size"),
        act=fields.activation(view, "hidden_activation", "gelu_pytorch_tanh"),
        layers=layers,
        ropes={name: table for name, table in ropes(view, head_dim, context).items() if name in used},
        tied=fields.tied_head(view, sources, default=True),
        embed_scale=fields.root(hidden),
        logit_softcap=fields.soft_cap(view, "final_logit_softcapping"),
    )


TINY = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "max_position_embeddings": 256,
    "query_pre_attn_scalar": 20,
    "sliding_window": 8,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}

PARITY = Parity(
    model_class="Gemma3ForCausalLM",
    config_class="Gemma3TextConfig",
    tiny={
        "plain": TINY,
        "softcap": TINY | {"final_logit_softcapping": 3.0},
        "scaled": TINY | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    },
)

FAMILY = Family(
    name="gemma3_text",
    configure=configure,
    build=build,
    kv_layers=blocks.kv_layers,
    tensors=TENSORS,
    parity=PARITY,
    ignored=IGNORED,
    irrelevant=fields.IRRELEVANT,
)
