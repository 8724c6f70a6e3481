"""What several families share: the attention and MLP blocks with explicit flags, and the common decoder config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from goinfer.compiler.checkpoints.tensor_map import AS_STORED, TensorRow, Transform
from goinfer.compiler.graph_view import KvLayer, RopeTable
from goinfer.families.fields import EMBEDDING, HEAD, ROPE_DIVISORS

if TYPE_CHECKING:
    from goinfer.compiler.graph import GraphBuilder, Value


@dataclass(frozen=True)
class Attention:
    """One layer's attention. `rope` names a table; window 0 sees everything; softcap 0 is off."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: str
    window: int = 0
    softcap: float = 0.0
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    @property
    def state(self) -> KvLayer:
        """What the layer keeps per position."""
        return KvLayer(self.n_kv_heads, self.head_dim, self.window)


@dataclass(frozen=True)
class Decoder:
    """A decoder of attention and gated MLP layers; the config of most families."""

    vocab: int
    hidden: int
    n_layers: int
    context: int
    eps: float
    ffn: int
    act: str
    layers: tuple[Attention, ...]
    ropes: Mapping[str, RopeTable]
    tied: bool
    mlp_bias: bool = False
    embed_scale: float = 1.0
    logit_softcap: float = 0.0

    @property
    def head_dim(self) -> int:
        """The head size that the stored q and k rows are grouped by."""
        return self.layers[0].head_dim


def kv_layers(c: Decoder) -> tuple[KvLayer, ...]:
    """Every layer keeps its own keys and values."""
    return tuple(layer.state for layer in c.layers)


def embedding(g: GraphBuilder, c: Decoder) -> Value:
    """Declare the rope tables, look the tokens up and mark hidden state 0."""
    for name, table in c.ropes.items():
        g.rope_table(name, table)
    x = g.embed(g.token_ids(), EMBEDDING, c.vocab, c.hidden, c.embed_scale)
    g.hidden(x, 0)
    return x


def attention(g: GraphBuilder, x: Value, i: int, c: Decoder) -> Value:
    """Self-attention of layer i on the normed rows x, output projection included."""
    a, blk = c.layers[i], f"blk.{i}"
    q = g.linear(x, f"{blk}.attn_q", a.n_heads * a.head_dim, "attn_qkv", a.qkv_bias)
    k = g.linear(x, f"{blk}.attn_k", a.n_kv_heads * a.head_dim, "attn_qkv", a.qkv_bias)
    v = g.linear(x, f"{blk}.attn_v", a.n_kv_heads * a.head_dim, "attn_qkv", a.qkv_bias)
    if a.qk_norm:
        q = g.rms_norm(q, f"{blk}.attn_q_norm.weight", c.eps, a.head_dim)
        k = g.rms_norm(k, f"{blk}.attn_k_norm.weight", c.eps, a.head_dim)
    q = g.rope(q, f"{blk}.q_rope", a.rope, a.head_dim)
    k = g.rope(k, f"{blk}.k_rope", a.rope, a.head_dim)
    g.kv_write(k, v, f"{blk}.kv", i)
    y = g.attention(q, f"{blk}.attn", layer=i, n_heads=a.n_heads, state=a.state, scale=a.scale, softcap=a.softcap)
    return g.linear(y, f"{blk}.attn_output", c.hidden, "attn_out", a.out_bias)


def gated_mlp(g: GraphBuilder, x: Value, i: int, c: Decoder) -> Value:
    """down(act(gate x) * up x) of layer i."""
    blk = f"blk.{i}"
    gate = g.linear(x, f"{blk}.ffn_gate", c.ffn, "mlp_gate_up", c.mlp_bias)
    up = g.linear(x, f"{blk}.ffn_up", c.ffn, "mlp_gate_up", c.mlp_bias)
    y = g.mul(g.act(gate, f"{blk}.ffn_act", c.act), up, f"{blk}.ffn_gated")
    return g.linear(y, f"{blk}.ffn_down", c.hidden, "mlp_down", c.mlp_bias)


def logits(g: GraphBuilder, x: Value, c: Decoder) -> None:
    """The final norm, the last hidden state and the head."""
    x = g.rms_norm(x, "output_norm.weight", c.eps)
    g.hidden(x, c.n_layers + 1)
    g.logits(x, EMBEDDING if c.tied else HEAD, c.vocab, softcap=c.logit_softcap)


def pre_norm_decoder(g: GraphBuilder, c: Decoder) -> None:
    """The llama wiring: x += attention(norm(x)), x += mlp(norm(x)) in every layer."""
    x = embedding(g, c)
    for i in range(c.n_layers):
        y = attention(g, g.rms_norm(x, f"blk.{i}.attn_norm.weight", c.eps), i, c)
        x = g.add(x, y, f"blk.{i}.attn_residual")
        y = gated_mlp(g, g.rms_norm(x, f"blk.{i}.ffn_norm.weight", c.eps), i, c)
        x = g.add(x, y, f"blk.{i}.ffn_residual")
        g.hidden(x, i + 1)
    logits(g, x, c)


def outer_tensors(norm: Transform = AS_STORED) -> tuple[TensorRow, ...]:
    """Rows of the tensors outside the layers; `norm` is what safetensors norms need."""
    return (
        TensorRow(EMBEDDING, EMBEDDING, "model.embed_tokens.weight"),
        TensorRow("output_norm.weight", "output_norm.weight", "model.norm.weight", hf_transform=norm),
        TensorRow(HEAD, HEAD, "lm_head.weight", spare=True),
        TensorRow(ROPE_DIVISORS, ROPE_DIVISORS, ""),
    )


def layer_tensor(name: str, hf: str, gguf: Transform = AS_STORED, norm: Transform = AS_STORED) -> TensorRow:
    """The row of a tensor `blk.{i}.<name>`, which GGUF calls the same, `model.layers.{i}.<hf>` in safetensors."""
    own = f"blk.{{i}}.{name}"
    return TensorRow(own, own, f"model.layers.{{i}}.{hf}", gguf_transform=gguf, hf_transform=norm)


def linear_tensors(qk: Transform = AS_STORED) -> tuple[TensorRow, ...]:
    """Rows of the weights and biases of attention() and gated_mlp(); `qk` is what GGUF's q and k rows need."""
    names = (
        ("attn_q", "self_attn.q_proj", qk),
        ("attn_k", "self_attn.k_proj", qk),
        ("attn_v", "self_attn.v_proj", AS_STORED),
        ("attn_output", "self_attn.o_proj", AS_STORED),
        ("ffn_gate", "mlp.gate_proj", AS_STORED),
        ("ffn_up", "mlp.up_proj", AS_STORED),
        ("ffn_down", "mlp.down_proj", AS_STORED),
    )
    return tuple(
        layer_tensor(f"{own}.{part}", f"{hf}.{part}", transform)
        for own, hf, transform in names
        for part in ("weight", "bias")
    )
