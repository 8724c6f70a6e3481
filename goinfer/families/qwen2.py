"""Qwen 2 and 2.5: the llama wiring with biases on q, k and v, and a sliding window on upper layers if asked for."""

from goinfer.compiler.checkpoints.config_view import ConfigView
from goinfer.compiler.checkpoints.tensor_map import SourceMap
from goinfer.compiler.errors import ConfigError
from goinfer.compiler.family import Family, Parity
from goinfer.families import blocks, fields

IGNORED = ("model.layers.*.self_attn.rotary_emb.inv_freq",)

TENSORS = (
    *blocks.outer_tensors(),
    blocks.layer_tensor("attn_norm.weight", "input_layernorm.weight"),
    blocks.layer_tensor("ffn_norm.weight", "post_attention_layernorm.weight"),
    *blocks.linear_tensors(),
)


def windows(view: ConfigView, n_layers: int) -> list[int]:
    """The window of each layer: off unless use_sliding_window, then by layer_types or from max_window_layers on."""
    asked, window = fields.flag(view, "use_sliding_window"), view.get("sliding_window")
    first, kinds = view.get("max_window_layers", 28), view.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(n_layers)]
        if not asked or window is None:
            return [0] * n_layers
    elif "sliding_attention" in kinds and (not asked or not window):
        raise ConfigError("config key layer_types: sliding layers, but the sliding window is off")
    return fields.layer_windows(kinds, n_layers, window or 0)


def configure(view: ConfigView, sources: SourceMap) -> blocks.Decoder:
    """Read a qwen2 config."""
    hidden, n_heads = fields.size(view, "hidden_size"), fields.size(view, "num_attention_heads")
    n_layers = fields.size(view, "num_hidden_layers")
    n_kv_heads = fields.size(view, "num_key_value_heads", n_heads)
    head_dim = fields.size(view, "head_dim", hidden // n_heads)
    context = fields.size(view, "max_position_embeddings", 32768)
    layers = tuple(
        blocks.Attention(n_heads, n_kv_heads, head_dim, head_dim**-0.5, "rope", window, qkv_bias=True)
        for window in windows(view, n_layers)
    )
    return blocks.Decoder(
        vocab=fields.vocabulary(view, sources),
        hidden=hidden,
        n_layers=n_layers,
        context=context,
        eps=fields.number(view, "rms_norm_eps", 1e-6),
        ffn=fields.size(view, "intermediate_size"),
        act=fields.activation(view, "hidden_act", "silu"),
        layers=layers,
        ropes={"rope": fields.rope_table(view, sources, head_dim, context)},
        tied=fields.tied_head(view, sources, default=False),
    )


TINY = {
    "vocab_size": 260,
    "hidden_size": 112,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "num_attention_heads": 7,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}

PARITY = Parity(
    model_class="Qwen2ForCausalLM",
    config_class="Qwen2Config",
    tiny={
        "plain": TINY | {"tie_word_embeddings": True},
        "window": TINY | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    },
)

FAMILY = Family(
    name="qwen2",
    configure=configure,
    build=blocks.pre_norm_decoder,
    kv_layers=blocks.kv_layers,
    tensors=TENSORS,
    parity=PARITY,
    ignored=IGNORED,
    irrelevant=fields.IRRELEVANT,
)
