"""Llama 1-3 and the models of its wiring (SmolLM, TinyLlama): pre-norm, SiLU gated MLP, half RoPE, optional biases."""

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.tensor_map import UNPAIR_ROWS, SourceMap
from goinfer.compiler.family import Family, Parity
from goinfer.families import blocks, fields

IGNORED = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

TENSORS = (
    *blocks.outer_tensors(),
    blocks.layer_tensor("attn_norm.weight", "input_layernorm.weight"),
    blocks.layer_tensor("ffn_norm.weight", "post_attention_layernorm.weight"),
    *blocks.linear_tensors(qk=UNPAIR_ROWS),
)


def configure(view: ConfigView, sources: SourceMap) -> blocks.Decoder:
    """Read a llama config. GGUF has no bias flags, so there the tensors decide."""
    hidden, n_heads = fields.size(view, "hidden_size"), fields.size(view, "num_attention_heads")
    n_layers = fields.size(view, "num_hidden_layers")
    head_dim = fields.size(view, "head_dim", hidden // n_heads)
    context = fields.size(view, "max_position_embeddings", 2048)
    attention = blocks.Attention(
        n_heads=n_heads,
        n_kv_heads=fields.size(view, "num_key_value_heads", n_heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope="rope",
        qkv_bias=fields.bias(view, sources, "attention_bias", "blk.0.attn_q"),
        out_bias=fields.bias(view, sources, "attention_bias", "blk.0.attn_output"),
    )
    return blocks.Decoder(
        vocab=fields.vocabulary(view, sources),
        hidden=hidden,
        n_layers=n_layers,
        context=context,
        eps=fields.number(view, "rms_norm_eps", 1e-6),
        ffn=fields.size(view, "intermediate_size"),
        act=fields.activation(view, "hidden_act", "silu"),
        layers=(attention,) * n_layers,
        ropes={"rope": fields.rope_table(view, sources, head_dim, context)},
        tied=fields.tied_head(view, sources, default=False),
        mlp_bias=fields.bias(view, sources, "mlp_bias", "blk.0.ffn_gate"),
    )


TINY = {
    "vocab_size": 260,
    "hidden_size": 72,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}

PARITY = Parity(
    model_class="LlamaForCausalLM",
    config_class="LlamaConfig",
    tiny={
        "plain": TINY | {"tie_word_embeddings": True},
        "biases": TINY | {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 6},
        "linear": TINY | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        "llama3": TINY
        | {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        "yarn": TINY | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    },
)

FAMILY = Family(
    name="llama",
    configure=configure,
    build=blocks.pre_norm_decoder,
    kv_layers=blocks.kv_layers,
    tensors=TENSORS,
    parity=PARITY,
    ignored=IGNORED,
    irrelevant=fields.IRRELEVANT,
)
