"""The numpy reference of each op against its sentence of maths, written out again with plain Python loops."""

import math

import numpy as np
import pytest

from goinfer.compiler import reference
from goinfer.compiler.graph import Graph, GraphBuilder, KvLayer, ModelInfo
from goinfer.compiler.interpret import run
from goinfer.compiler.ops import GraphError
from goinfer.compiler.reference import RopeTable, State, Weight

RNG = np.random.default_rng(11)


def rows(n: int, width: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal((n, width)) * scale).astype(np.float32)


def weight(*shape: int) -> Weight:
    values = (RNG.standard_normal(shape) * 0.5).astype(np.float32)
    return Weight(shape, lambda start, stop: values[start:stop])


def state(n: int = 1, **ropes: RopeTable) -> State:
    return State(np.arange(n), ropes)


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


def test_embed_looks_up_and_scales() -> None:
    table = weight(5, 3)
    got = reference.embed(state(), {"scale": 8.0}, np.array([4, 0, 4]), table)
    close(got, np.array([table.full()[i] * 8.0 for i in (4, 0, 4)]))


def test_embed_reads_one_row_per_distinct_id() -> None:
    read = []
    table = Weight((9, 2), lambda a, b: read.append((a, b)) or np.ones((b - a, 2), np.float32))
    reference.embed(state(), {"scale": 1.0}, np.array([7, 2, 7]), table)
    assert read == [(2, 3), (7, 8)]


def test_linear_sums_in_float64() -> None:
    x, w, b = rows(3, 7), weight(4, 7), weight(4)
    want = [[sum(float(x[r, k]) * float(w.full()[n, k]) for k in range(7)) for n in range(4)] for r in range(3)]
    close(reference.linear(state(), {}, x, w), np.array(want))
    close(reference.linear(state(), {}, x, w, b), np.array(want) + b.full())
    big = np.array([[1e8, 1.0, -1e8]], np.float32)
    ones = Weight((1, 3), lambda a, b: np.ones((1, 3), np.float32))
    assert reference.linear(state(), {}, big, ones)[0, 0] == 1.0


def test_linear_reads_its_weight_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "BAND_BYTES", 4 * 7 * 4)
    w = weight(10, 7)
    read = []
    banded = Weight(w.shape, lambda a, b: read.append((a, b)) or w.read(a, b))
    x = rows(2, 7)
    close(reference.linear(state(), {}, x, banded), x.astype(np.float64) @ w.full().T)
    assert read == [(0, 4), (4, 8), (8, 10)]


@pytest.mark.parametrize("size", [6, 3, 2])
def test_rms_norm_of_runs(size: int) -> None:
    x, w = rows(4, 6, 3.0), weight(size)
    want = np.empty_like(x)
    for r in range(4):
        for start in range(0, 6, size):
            run_ = [float(v) for v in x[r, start : start + size]]
            root = math.sqrt(sum(v * v for v in run_) / size + 1e-3)
            want[r, start : start + size] = [v / root * float(g) for v, g in zip(run_, w.full(), strict=True)]
    close(reference.rms_norm(state(), {"eps": 1e-3, "size": size}, x, w), want)


def test_rms_norm_of_zeros_is_zero() -> None:
    got = reference.rms_norm(state(), {"eps": 1e-6, "size": 4}, np.zeros((1, 4), np.float32), weight(4))
    assert np.array_equal(got, np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("post", [True, False])
def test_add_norm(post: bool) -> None:
    x, d, w, p = rows(3, 5), rows(3, 5, 4.0), weight(5), weight(5)
    a = {"eps": 1e-5, "post_eps": 1e-2}
    branch = reference.rms_norm(state(), {"eps": 1e-2, "size": 5}, d, p) if post else d
    total, normed = reference.add_norm(state(), a, x=x, delta=d, weight=w, post_weight=p if post else None)
    close(total, x + branch)
    close(normed, reference.rms_norm(state(), {"eps": 1e-5, "size": 5}, total, w))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_pairs_of_the_first_dim_elements(interleaved: bool) -> None:
    """A head of 8 of which 6 rotate; two heads; the last two elements stay."""
    table = RopeTable(6, (1.0, 0.25, 0.0625), 1.5)
    x = rows(5, 16)
    want = x.copy()
    for p in range(5):
        for head in (0, 8):
            for i, f in enumerate(table.inv_freq):
                a, b = (head + 2 * i, head + 2 * i + 1) if interleaved else (head + i, head + i + 3)
                c, s = math.cos(p * f) * 1.5, math.sin(p * f) * 1.5
                want[p, a] = x[p, a] * c - x[p, b] * s
                want[p, b] = x[p, b] * c + x[p, a] * s
    attrs = {"table": "t", "head_dim": 8, "interleaved": interleaved}
    close(reference.rope(state(t=table), attrs, x), want)


def attend(q, k, v, *, heads, window=0, softcap=0.0, scale=0.3, sinks=None):
    """Attention of [rows, heads, dim] queries, spelled out."""
    n, dim = q.shape[0], q.shape[2]
    group = heads // k.shape[1]
    out = np.zeros_like(q)
    for r in range(n):
        for h in range(heads):
            scores = {}
            for j in range(r + 1):
                if window and j <= r - window:
                    continue
                s = scale * sum(float(q[r, h, i]) * float(k[j, h // group, i]) for i in range(dim))
                scores[j] = softcap * math.tanh(s / softcap) if softcap else s
            total = sum(math.exp(s) for s in scores.values())
            total += math.exp(float(sinks[h])) if sinks is not None else 0.0
            for j, s in scores.items():
                out[r, h] += math.exp(s) / total * v[j, h // group]
    return out


@pytest.mark.parametrize("heads", [2, 4, 6])
@pytest.mark.parametrize(
    ("window", "softcap", "sink"), [(0, 0.0, False), (1, 0.0, False), (3, 0.7, False), (4, 0.0, True)]
)
def test_attention(heads: int, window: int, softcap: float, sink: bool) -> None:
    n, dim = 7, 4
    q, k, v = rows(n, heads * dim, 2.0), rows(n, 2 * dim, 2.0), rows(n, 2 * dim)
    sinks = weight(heads) if sink else None
    s = state(n)
    reference.kv_write(s, {"layer": 3}, k, v)
    attrs = {"layer": 3, "n_heads": heads, "n_kv_heads": 2, "head_dim": dim, "window": window}
    got = reference.attention(s, attrs | {"softcap": softcap, "scale": 0.3}, q, sinks)
    shape = (n, -1, dim)
    want = attend(
        q.reshape(shape), k.reshape(shape), v.reshape(shape), heads=heads, window=window, softcap=softcap,
        sinks=sinks.full() if sinks else None,
    )  # fmt: skip
    close(got, want.reshape(n, -1))


def test_attention_with_huge_scores_is_finite() -> None:
    s = state(2)
    reference.kv_write(s, {"layer": 0}, rows(2, 4, 1e4), rows(2, 4))
    attrs = {"layer": 0, "n_heads": 1, "n_kv_heads": 1, "head_dim": 4, "window": 0, "softcap": 0.0, "scale": 1.0}
    assert np.isfinite(reference.attention(s, attrs, rows(2, 4, 1e4))).all()


@pytest.mark.parametrize(
    ("fn", "formula"),
    [
        ("silu", lambda x: x / (1 + math.exp(-x))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))),
        ("gelu_erf", lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2)))),
        ("relu", lambda x: max(x, 0.0)),
        ("relu2", lambda x: max(x, 0.0) ** 2),
    ],
)
def test_activations(fn: str, formula) -> None:
    x = np.concatenate([rows(1, 50, 3.0), np.array([[0.0, 30.0, -30.0, 1e-6]], np.float32)], axis=1)
    close(reference.act(state(), {"fn": fn}, x), np.array([[formula(float(v)) for v in x[0]]]))
    gate_up = np.concatenate([x, x[:, ::-1]], axis=1)
    got = reference.gate_act(state(), {"fn": fn, "size": x.shape[1]}, gate_up)
    close(got, np.array([[formula(float(v)) for v in x[0]]]) * x[:, ::-1])


def test_silu_of_extremes_is_finite() -> None:
    x = np.array([[-1e30, 1e30, -1e4]], np.float32)
    assert np.array_equal(reference.act(state(), {"fn": "silu"}, x), np.array([[0.0, 1e30, 0.0]], np.float32))


def test_element_wise_ops_and_slices() -> None:
    x, y = rows(2, 6), rows(2, 6)
    close(reference.add(state(), {}, x, y), x + y)
    close(reference.mul(state(), {}, x, y), x * y)
    close(reference.scale(state(), {"factor": 0.1}, x), x * 0.1)
    close(reference.softcap(state(), {"cap": 0.5}, x), np.tanh(x / 0.5) * 0.5)
    assert reference.softcap(state(), {"cap": 0.0}, x) is x
    assert np.array_equal(reference.slice_columns(state(), {"start": 2, "size": 3}, x), x[:, 2:5])


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_lm_head_scales_then_caps(softcap: float) -> None:
    x, w = rows(2, 5), weight(9, 5)
    plain = x.astype(np.float64) @ w.full().T * 0.25
    want = np.tanh(plain / softcap) * softcap if softcap else plain
    close(reference.lm_head(state(), {"scale": 0.25, "softcap": softcap}, x, w), want)


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("table", ["t", ""])
def test_qkv_post_is_its_parts(norms: bool, table: str) -> None:
    n, dim, heads, kv = 4, 6, 3, 1
    ropes = {"t": RopeTable(6, (1.0, 0.5, 0.25))}
    qkv, qw, kw = rows(n, (heads + 2 * kv) * dim), weight(dim), weight(dim)
    attrs = {"layer": 0, "n_heads": heads, "n_kv_heads": kv, "head_dim": dim, "table": table}
    s = state(n, **ropes)
    got = reference.qkv_post(
        s, attrs | {"interleaved": False, "eps": 1e-6}, qkv, qw if norms else None, kw if norms else None
    )
    q, k, v = np.split(qkv, [heads * dim, (heads + kv) * dim], axis=1)
    for part, w in ((q, qw), (k, kw)):
        if norms:
            part[:] = reference.rms_norm(s, {"eps": 1e-6, "size": dim}, part, w)
        if table:
            part[:] = reference.rope(s, {"table": "t", "head_dim": dim, "interleaved": False}, part)
    assert np.array_equal(got, q) and np.array_equal(s.keys[0], k) and np.array_equal(s.values[0], v)


def one_layer() -> Graph:
    g = GraphBuilder()
    g.model(ModelInfo("test", 16, 8, 0, 64))
    x = g.embed(g.token_ids(), "e.weight", 16, 8)
    g.hidden(x, 0)
    g.hidden(x, 1)
    g.logits(g.linear(x, "a", 8, "mlp_down"), "e.weight", 16)
    return g.graph


def test_run_observes_every_op_by_label() -> None:
    weights = {"e.weight": rows(16, 8), "a.weight": rows(8, 8)}
    seen = {}
    run(
        one_layer().view(), [3, 1], lambda name, a, b: weights[name][a:b],
        lambda op, results: seen.update({op.label: results}),
    )  # fmt: skip
    assert list(seen) == ["token_ids", "e", "hidden.0", "hidden.1", "a",
                          "lm_head", "output"]  # fmt: skip
    close(seen["a"][0], weights["e.weight"][[3, 1]].astype(np.float64) @ weights["a.weight"].T)


@pytest.mark.parametrize("ids", [[16], [-1], [], [[1, 2]]])
def test_run_refuses_ids_outside_the_vocabulary(ids: list) -> None:
    with pytest.raises(GraphError, match="run: "):
        run(one_layer().view(), ids, lambda name, a, b: rows(b - a, 8))


def test_run_reads_a_concatenated_parameter_across_its_parts() -> None:
    text = (
        one_layer()
        .text()
        .replace(
            'name = "a.weight", parts = ["a.weight"], role = "mlp_down", rows = array<i64: 8>',
            'name = "a.weight", parts = ["p", "q", "r"], role = "mlp_down", rows = array<i64: 3, 1, 4>',
        )
    )
    parts = {"p": rows(3, 8), "q": rows(1, 8), "r": rows(4, 8), "e.weight": rows(16, 8)}
    got = run(Graph.parse(text).view(), [5, 2], lambda name, a, b: parts[name][a:b])
    whole = np.concatenate([parts["p"], parts["q"], parts["r"]])
    middle = parts["e.weight"][[5, 2]].astype(np.float64) @ whole.T
    close(got.logits, middle.astype(np.float32).astype(np.float64) @ parts["e.weight"].T)


def test_causality_a_prefix_gives_the_same_rows() -> None:
    """A row depends on nothing behind it: the reference itself obeys the contract, up to nothing at all."""
    g = GraphBuilder()
    g.model(ModelInfo("test", 16, 8, 0, 64))
    g.kv_cache(0, KvLayer(1, 4, 3))
    x = g.embed(g.token_ids(), "e.weight", 16, 8)
    g.hidden(x, 0)
    g.hidden(x, 1)
    k = g.linear(x, "k", 4, "attn_qkv")
    g.kv_write(k, k, "kv", 0)
    g.logits(g.attention(x, "a", layer=0, n_heads=2, state=KvLayer(1, 4, 3), scale=0.5), "e.weight", 16)
    weights = {"e.weight": rows(16, 8), "k.weight": rows(4, 8)}
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    whole = run(g.graph.view(), ids, lambda name, a, b: weights[name][a:b]).logits
    for n in (1, 3, 4, 7):
        part = run(g.graph.view(), ids[:n], lambda name, a, b: weights[name][a:b]).logits
        np.testing.assert_allclose(part, whole[:n], rtol=1e-6, atol=1e-6)
