"""The closed list of `giw` ops: exact maths in one sentence, result shapes, stages, and the numpy reference.

Operand names, attribute kinds and result names are declared in giw.irdl.mlir. R is the number of rows of a
forward; row r is one token at position p(r) of its sequence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from goinfer.bundle_format.errors import GoinferError
from goinfer.compiler import reference

ROLES = ("embed", "head", "attn_qkv", "attn_out", "mlp_gate_up", "mlp_down", "norm", "bias", "sinks")


class GraphError(GoinferError):
    """A graph breaks a rule of its stage; the message names the op and the rule."""


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a value; None is R, the number of rows."""

    shape: tuple[int | None, ...]
    dtype: str = "f32"

    def __str__(self) -> str:
        return "x".join("R" if d is None else str(d) for d in self.shape) + f" {self.dtype}"


def rows_of(width: int) -> TensorType:
    """The type of an activation: R rows of `width` float32."""
    return TensorType((None, width))


Shapes = Mapping[str, TensorType]
Attrs = Mapping[str, Any]
Infer = Callable[[Attrs, Shapes], tuple[TensorType, ...]]

MODEL, FUSED = "model", "fused"
BOTH = (MODEL, FUSED)


@dataclass(frozen=True)
class OpDef:
    """One op. `infer` maps attributes and operand types to result types or raises GraphError.

    `effect` ops act on state or outputs and are never removed; `reference` is None for facts and parameters.
    """

    maths: str
    infer: Infer
    reference: Callable[..., Any] | None = None
    stages: tuple[str, ...] = BOTH
    effect: bool = False


def _need(condition: bool, text: str) -> None:
    if not condition:
        raise GraphError(text)


def _width(shapes: Shapes, name: str) -> int:
    shape = shapes[name].shape
    _need(len(shape) == 2 and shape[0] is None and shapes[name].dtype == "f32", f"{name} is not a row tensor")
    width = shape[1]
    _need(width is not None, f"{name} has no fixed width")
    return int(width or 0)


def _param(shapes: Shapes, name: str, *want: int) -> None:
    if name in shapes:
        _need(shapes[name] == TensorType(want), f"{name} is {shapes[name]}, expected {TensorType(want)}")


def _matrix(shapes: Shapes, k: int) -> int:
    shape = shapes["weight"].shape
    _need(len(shape) == 2 and shape[0] is not None, "weight is not a matrix")
    _param(shapes, "weight", int(shape[0] or 0), k)
    return int(shape[0] or 0)


def _nothing(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    return ()


def _embed(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    shape = t["weight"].shape
    _need(t["ids"] == TensorType((None,), "i32"), "ids are not R i32")
    _need(len(shape) == 2 and None not in shape, "weight is not a matrix")
    return (rows_of(int(shape[1] or 0)),)


def _linear(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    n = _matrix(t, _width(t, "x"))
    _param(t, "bias", n)
    return (rows_of(n),)


def _rms_norm(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    width = _width(t, "x")
    _need(a["size"] > 0 and width % a["size"] == 0, f"size {a['size']} does not divide the width {width}")
    _param(t, "weight", a["size"])
    return (t["x"],)


def _rope(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    width = _width(t, "x")
    _need(a["head_dim"] > 0 and width % a["head_dim"] == 0, f"head_dim does not divide the width {width}")
    return (t["x"],)


def _kv_write(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    _need(_width(t, "k") == _width(t, "v"), "k and v differ in width")
    return ()


def _attention(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    width = a["n_heads"] * a["head_dim"]
    _need(_width(t, "q") == width, f"q has width {_width(t, 'q')}, n_heads * head_dim is {width}")
    _need(a["n_heads"] % a["n_kv_heads"] == 0, "n_kv_heads does not divide n_heads")
    _param(t, "sinks", a["n_heads"])
    return (t["q"],)


def _slice(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    inside = a["start"] >= 0 and a["size"] > 0 and a["start"] + a["size"] <= _width(t, "x")
    _need(inside, f"columns {a['start']}..{a['start'] + a['size']} leave the width {_width(t, 'x')}")
    return (rows_of(a["size"]),)


def _same(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    return (rows_of(_width(t, "x")),)


def _binary(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    _need(_width(t, "x") == _width(t, "y"), "x and y differ in width")
    return (t["x"],)


def _sink(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    _width(t, "x")
    return ()


def _lm_head(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    return (rows_of(_matrix(t, _width(t, "x"))),)


def _add_norm(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    width = _width(t, "x")
    _need(_width(t, "delta") == width, "x and delta differ in width")
    _param(t, "weight", width)
    _param(t, "post_weight", width)
    return (t["x"], t["x"])


def _qkv_post(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    dim = a["head_dim"]
    width = (a["n_heads"] + 2 * a["n_kv_heads"]) * dim
    _need(_width(t, "qkv") == width, f"qkv has width {_width(t, 'qkv')}, the heads take {width}")
    _param(t, "q_norm", dim)
    _param(t, "k_norm", dim)
    return (rows_of(a["n_heads"] * dim),)


def _gate_act(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    _need(_width(t, "gate_up") == 2 * a["size"], "gate_up is not twice the size")
    return (rows_of(a["size"]),)


def _declared(a: Attrs, t: Shapes) -> tuple[TensorType, ...]:
    raise GraphError("the type of a parameter is declared, not inferred")


OPS: Mapping[str, OpDef] = {
    "model": OpDef("States the family, the vocabulary, hidden size, layer count and longest context.", _nothing),
    "rope_table": OpDef("Declares angles p * inv_freq[i] in f32 and cos, sin times attention_factor.", _nothing),
    "kv_cache": OpDef(
        "Declares a layer's state: keys and values [position, n_kv_heads, head_dim]; window 0 keeps all.",
        _nothing,
    ),
    "token_ids": OpDef("ids[r] = the token of row r.", lambda a, t: (TensorType((None,), "i32"),), reference.token_ids),
    "param": OpDef("The rows of the source tensors `parts`, `rows` of each, one after the other.", _declared),
    "hidden": OpDef("Row r of x is hidden state `index` of row r.", _sink, reference.hidden, effect=True),
    "output": OpDef("x are the logits of the rows.", _sink, reference.output, effect=True),
    "embed": OpDef("y[r] = weight[ids[r]] * scale.", _embed, reference.embed),
    "linear": OpDef("y[r,n] = sum_k x[r,k] * weight[n,k] + bias[n].", _linear, reference.linear),
    "rms_norm": OpDef(
        "Each run c of `size` elements of a row: y = c / sqrt(mean(c^2) + eps) * weight.",
        _rms_norm,
        reference.rms_norm,
    ),
    "rope": OpDef(
        "In each head the pairs (i, i + dim/2), or (2i, 2i+1) when interleaved, of the first table.dim elements"
        " turn by the table's angle for p(r): (a cos - b sin, b cos + a sin).",
        _rope,
        reference.rope,
        (MODEL,),
    ),
    "kv_write": OpDef(
        "State `layer` at p(r) becomes k[r], v[r].", _kv_write, reference.kv_write, (MODEL,), effect=True
    ),
    "attention": OpDef(
        "Head h of y[r] = sum_j softmax_j(s_j) v_j over state `layer` of kv head h // (n_heads / n_kv_heads),"
        " with s_j = scale * q.k_j, then softcap * tanh(s_j / softcap) if softcap > 0, over j <= p(r) and, if"
        " window > 0, j > p(r) - window; sinks[h] joins the softmax and is dropped.",
        _attention,
        reference.attention,
    ),
    "slice": OpDef("y = x[:, start : start + size].", _slice, reference.slice_columns, (MODEL,)),
    "act": OpDef(
        "silu x/(1+e^-x); gelu_tanh x/2 (1+tanh(sqrt(2/pi)(x+0.044715x^3))); gelu_erf x/2 (1+erf(x/sqrt 2));"
        " relu max(x,0); relu2 max(x,0)^2.",
        _same,
        reference.act,
        (MODEL,),
    ),
    "mul": OpDef("z = x * y.", _binary, reference.mul, (MODEL,)),
    "add": OpDef("z = x + y.", _binary, reference.add),
    "scale": OpDef("y = x * factor.", _same, reference.scale),
    "softcap": OpDef("y = cap * tanh(x / cap); cap 0 is y = x.", _same, reference.softcap),
    "lm_head": OpDef(
        "y[r,n] = sum_k x[r,k] * weight[n,k] * scale, then softcap * tanh(y / softcap) if softcap > 0.",
        _lm_head,
        reference.lm_head,
    ),
    "add_norm": OpDef(
        "sum = x + delta, or x + rms(delta, post_eps) * post_weight; normed = rms(sum, eps) * weight.",
        _add_norm,
        reference.add_norm,
        (FUSED,),
    ),
    "qkv_post": OpDef(
        "Columns are q|k|v; q and k: per head rms * q_norm, k_norm, then rope `table` (empty is none); k, v"
        " become state `layer` at p(r); the result is q.",
        _qkv_post,
        reference.qkv_post,
        (FUSED,),
        effect=True,
    ),
    "gate_act": OpDef("y = fn(gate_up[:, :size]) * gate_up[:, size:].", _gate_act, reference.gate_act, (FUSED,)),
}
