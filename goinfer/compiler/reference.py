"""The numpy meaning of each op: float32 results, float64 wherever an op accumulates.

Every function takes the sequence's State, the op's attributes and its operands by name (activations as
float32 arrays [rows, width], parameters as Weight handles) and returns one array, a tuple of arrays, or None.
Slow on purpose: it says what an op means, and the kernels are tested against it. One State is one sequence
that starts at position 0 and is run once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Attrs = Mapping[str, Any]
BAND_BYTES = 32 << 20

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Weight:
    """A parameter that is read in bands of rows, so that a large matrix is never whole in memory."""

    shape: tuple[int, ...]
    read: Callable[[int, int], F32]

    def full(self) -> F32:
        """The whole parameter; for norms and biases."""
        return self.read(0, self.shape[0])

    def bands(self) -> Iterator[tuple[int, int, F32]]:
        """(start, stop, rows) over all rows, at most BAND_BYTES of float32 at a time."""
        step = max(1, BAND_BYTES // (4 * math.prod(self.shape[1:])))
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            yield start, stop, self.read(start, stop)


@dataclass(frozen=True)
class RopeTable:
    """Rotation speeds of one RoPE: angle(p, i) = p * inv_freq[i], cos and sin times attention_factor.

    `dim` leading elements of a head rotate (2 * len(inv_freq)); inv_freq holds float32 values.
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


@dataclass
class State:
    """What one sequence carries from op to op: its ids, rope tables, keys and values, and the taps taken."""

    ids: NDArray[np.int64]
    ropes: Mapping[str, RopeTable]
    keys: dict[int, F32] = field(default_factory=dict)
    values: dict[int, F32] = field(default_factory=dict)
    hidden: dict[int, F32] = field(default_factory=dict)
    logits: F32 | None = None


def token_ids(s: State, a: Attrs) -> NDArray[np.int64]:
    """The ids themselves."""
    return s.ids


def embed(s: State, a: Attrs, ids: NDArray[np.int64], weight: Weight) -> F32:
    """One read per distinct id: the table may be larger than memory allows."""
    unique, place = np.unique(ids, return_inverse=True)
    rows = np.concatenate([weight.read(int(i), int(i) + 1) for i in unique])
    return rows[place] * np.float32(a["scale"])


def matmul(x: F32, weight: Weight) -> F32:
    """x @ weight.T with float64 sums."""
    wide = x.astype(np.float64)
    out = np.empty((x.shape[0], weight.shape[0]), np.float32)
    for start, stop, rows in weight.bands():
        out[:, start:stop] = wide @ rows.astype(np.float64).T
    return out


def linear(s: State, a: Attrs, x: F32, weight: Weight, bias: Weight | None = None) -> F32:
    """Matrix product plus bias."""
    out = matmul(x, weight)
    return out if bias is None else out + bias.full()


def normalise(x: F32, weight: F32, eps: float) -> F32:
    """RMS norm over the last axis."""
    wide = x.astype(np.float64)
    mean = np.mean(wide * wide, axis=-1, keepdims=True)
    return (wide / np.sqrt(mean + eps) * weight).astype(np.float32)


def rms_norm(s: State, a: Attrs, x: F32, weight: Weight) -> F32:
    """RMS norm of each run of `size` elements of a row."""
    runs = x.reshape(x.shape[0], -1, a["size"])
    return normalise(runs, weight.full(), a["eps"]).reshape(x.shape)


def add_norm(
    s: State, a: Attrs, *, x: F32, delta: F32, weight: Weight, post_weight: Weight | None = None
) -> tuple[F32, F32]:
    """Residual add (of the delta, normed first when post_weight is there) and the norm of the sum."""
    if post_weight is not None:
        delta = normalise(delta, post_weight.full(), a["post_eps"])
    total = x + delta
    return total, normalise(total, weight.full(), a["eps"])


def rotate(x: F32, table: RopeTable, interleaved: bool) -> F32:
    """Rotate the first table.dim elements of each head; x is [positions, heads, head_dim]."""
    angles = np.arange(x.shape[0], dtype=np.float32)[:, None] * np.array(table.inv_freq, np.float32)
    factor = np.float32(table.attention_factor)
    cos = (np.cos(angles.astype(np.float64)).astype(np.float32) * factor)[:, None, :].astype(np.float64)
    sin = (np.sin(angles.astype(np.float64)).astype(np.float32) * factor)[:, None, :].astype(np.float64)
    half = table.dim // 2
    first = slice(0, table.dim, 2) if interleaved else slice(0, half)
    second = slice(1, table.dim, 2) if interleaved else slice(half, table.dim)
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def rope(s: State, a: Attrs, x: F32) -> F32:
    """RoPE of each head of a row."""
    heads = x.reshape(x.shape[0], -1, a["head_dim"])
    return rotate(heads, s.ropes[a["table"]], a["interleaved"]).reshape(x.shape)


def kv_write(s: State, a: Attrs, k: F32, v: F32) -> None:
    """Store the rows' keys and values as the layer's state."""
    s.keys[a["layer"]], s.values[a["layer"]] = k, v


def qkv_post(s: State, a: Attrs, qkv: F32, q_norm: Weight | None = None, k_norm: Weight | None = None) -> F32:
    """Split q|k|v, norm and rotate q and k per head, store k and v, return q."""
    dim = a["head_dim"]
    q_width, kv_width = a["n_heads"] * dim, a["n_kv_heads"] * dim
    q, k, v = np.split(qkv, [q_width, q_width + kv_width], axis=1)
    done = []
    for x, norm in ((q, q_norm), (k, k_norm)):
        heads = x.reshape(x.shape[0], -1, dim)
        if norm is not None:
            heads = normalise(heads, norm.full(), a["eps"])
        if a["table"]:
            heads = rotate(heads, s.ropes[a["table"]], a["interleaved"])
        done.append(heads.reshape(x.shape))
    s.keys[a["layer"]], s.values[a["layer"]] = done[1], v
    return done[0]


def attention(s: State, a: Attrs, q: F32, sinks: Weight | None = None) -> F32:
    """Causal softmax attention, one head at a time in float64."""
    rows, dim, n_heads, n_kv = q.shape[0], a["head_dim"], a["n_heads"], a["n_kv_heads"]
    queries = q.reshape(rows, n_heads, dim).astype(np.float64)
    keys = s.keys[a["layer"]].reshape(-1, n_kv, dim).astype(np.float64)
    values = s.values[a["layer"]].reshape(-1, n_kv, dim).astype(np.float64)
    distance = np.arange(rows)[:, None] - np.arange(keys.shape[0])[None, :]
    seen = distance >= 0
    if a["window"]:
        seen &= distance < a["window"]
    sink = None if sinks is None else sinks.full().astype(np.float64)
    out = np.empty((rows, n_heads, dim), np.float32)
    for head in range(n_heads):
        kv_head = head // (n_heads // n_kv)
        scores = queries[:, head] @ keys[:, kv_head].T * a["scale"]
        if a["softcap"]:
            scores = np.tanh(scores / a["softcap"]) * a["softcap"]
        scores[~seen] = -np.inf
        top = scores.max(axis=1, keepdims=True)
        if sink is not None:
            top = np.maximum(top, sink[head])
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        if sink is not None:
            total += np.exp(sink[head] - top)
        out[:, head] = weights / total @ values[:, kv_head]
    return out.reshape(rows, n_heads * dim)


def activate(x: F32, fn: str) -> F32:
    """One of ACTIVATIONS, evaluated in float64."""
    with np.errstate(over="ignore"):
        return ACTIVATIONS[fn](x.astype(np.float64)).astype(np.float32)


ACTIVATIONS: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64)),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.maximum(x, 0.0) ** 2,
}


def act(s: State, a: Attrs, x: F32) -> F32:
    """Element-wise activation."""
    return activate(x, a["fn"])


def gate_act(s: State, a: Attrs, gate_up: F32) -> F32:
    """Activation of the first half times the second half."""
    return activate(gate_up[:, : a["size"]], a["fn"]) * gate_up[:, a["size"] :]


def slice_columns(s: State, a: Attrs, x: F32) -> F32:
    """A run of columns."""
    return x[:, a["start"] : a["start"] + a["size"]]


def mul(s: State, a: Attrs, x: F32, y: F32) -> F32:
    """Element-wise product."""
    return x * y


def add(s: State, a: Attrs, x: F32, y: F32) -> F32:
    """Element-wise sum."""
    return x + y


def scale(s: State, a: Attrs, x: F32) -> F32:
    """Product with a constant."""
    return x * np.float32(a["factor"])


def cap(x: F32, limit: float) -> F32:
    """limit * tanh(x / limit); limit 0 is off."""
    return (np.tanh(x.astype(np.float64) / limit) * limit).astype(np.float32) if limit else x


def softcap(s: State, a: Attrs, x: F32) -> F32:
    """Soft cap of every element."""
    return cap(x, a["cap"])


def lm_head(s: State, a: Attrs, x: F32, weight: Weight) -> F32:
    """Logits of every row; the compiled program computes the wanted rows only."""
    return cap(matmul(x, weight) * np.float32(a["scale"]), a["softcap"])


def hidden(s: State, a: Attrs, x: F32) -> None:
    """Remember a hidden state."""
    s.hidden[a["index"]] = x


def output(s: State, a: Attrs, x: F32) -> None:
    """Remember the logits."""
    s.logits = x
