"""Every wiring detail matters: each small mistake, made on purpose in a graph, moves the logits far past the bar
that test_against_transformers.py sets, so a family that gets one wrong cannot pass it.
"""

import re
from collections.abc import Callable

import numpy as np
import pytest

from goinfer.compiler.graph import Graph
from goinfer.compiler.interpret import Trace, run
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.families.registry import family
from tests.families.memory_checkpoint import random_weights, tiny_graph

BAR = 2e-5
IDS = np.random.default_rng(5).integers(3, 260, 40)


def fused(name: str, tiny: str) -> tuple[Graph, dict[str, np.ndarray]]:
    """The fused graph of a tiny config and random weights for it."""
    config = {k: v for k, v in family(name).parity.tiny[tiny].items() if k != "tie_word_embeddings"}
    graph = tiny_graph(family(name), config)
    weights = random_weights(graph)
    run_passes(graph)
    return graph, weights


def trace(graph: Graph, weights: dict[str, np.ndarray]) -> Trace:
    return run(graph.view(), IDS, lambda n, a, b: weights[n][a:b])


def worst(got: Trace, want: Trace) -> float:
    """The worst position's relative L2 error of the logits and of the hidden states."""
    errors = [
        np.linalg.norm(g.astype(np.float64) - w, axis=-1) / np.linalg.norm(w, axis=-1)
        for g, w in ((got.logits, want.logits), (got.hidden, want.hidden))
    ]
    return float(max(e.max() for e in errors))


# (family, tiny, what goes wrong, regular expression, replacement); the first match alone is replaced.
EDITS = [
    ("llama", "plain", "eps doubled", r'eps = 1\.000000e-05 : f64, label = "blk.0.attn_norm"',
     'eps = 2.0e-5 : f64, label = "blk.0.attn_norm"'),
    ("llama", "plain", "rope pairs interleaved", "interleaved = false", "interleaved = true"),
    ("llama", "plain", "no rope in one layer", 'table = "rope"', 'table = ""'),
    ("llama", "plain", "attention scale off by a tenth", r"scale = 0\.2236\d*", "scale = 0.2460"),
    ("llama", "plain", "relu for silu", 'fn = "silu"', 'fn = "relu"'),
    ("llama", "plain", "residual from the wrong place", r'"giw.add_norm"\(%12#0,', '"giw.add_norm"(%2,'),
    ("llama", "plain", "gate and up swapped", r'parts = \["(blk.0.ffn_gate.weight)", "(blk.0.ffn_up.weight)"\]',
     r'parts = ["\2", "\1"]'),
    ("llama", "yarn", "attention factor left out", r"attention_factor = 1\.13\d*", "attention_factor = 1.0"),
    ("qwen2", "window", "window one key short", r"(layer = 1 : i64, n_heads = 7[^}]*)window = 8", r"\1window = 7"),
    ("qwen2", "window", "window one key long", r"(layer = 1 : i64, n_heads = 7[^}]*)window = 8", r"\1window = 9"),
    ("qwen2", "plain", "one wrong frequency", r"(inv_freq = array<f32: 1\.000000e\+00, )[^,]*", r"\g<1>0.3"),
    ("gemma3_text", "plain", "embedding unscaled", r'"token_embd", scale = 8\.0\d*e\+00', '"token_embd", scale = 1.0'),
    ("gemma3_text", "plain", "embedding scale of another precision", r'"token_embd", scale = 8\.0\d*e\+00',
     '"token_embd", scale = 8.03125'),
    ("gemma3_text", "plain", "local rope on a full layer", 'table = "full"', 'table = "sliding"'),
    ("gemma3_text", "plain", "global rope on a sliding layer", 'table = "sliding"', 'table = "full"'),
    ("gemma3_text", "plain", "scale from head_dim", r"scale = 0\.2236\d*", "scale = 0.2041241452319315"),
    ("gemma3_text", "plain", "exact gelu", 'fn = "gelu_tanh"', 'fn = "gelu_erf"'),
    ("gemma3_text", "softcap", "final cap left out", r"softcap = 3\.0\d*e\+00", "softcap = 0.0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tiny", "what", "old", "new"), EDITS, ids=[f"{e[0]}-{e[2]}" for e in EDITS])
def test_a_wrong_attribute_shows(name: str, tiny: str, what: str, old: str, new: str) -> None:
    graph, weights = fused(name, tiny)
    broken, count = re.subn(old, new, graph.text(), count=1)
    assert count == 1, f"{what}: the text moved; fix the edit"
    assert worst(trace(Graph.parse(broken), weights), trace(graph, weights)) > 5 * BAR


def paired(name: str, w: np.ndarray) -> np.ndarray:
    return w.reshape(-1, 10, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape) if "attn_q" in name else w


def swapped(name: str, w: np.ndarray) -> np.ndarray:
    return w.reshape(2, 20, -1)[::-1].reshape(w.shape) if "attn_k" in name else w


@pytest.mark.parametrize(
    ("name", "what", "change"),
    [
        ("gemma3_text", "norm weights without the one", lambda n, w: w - 1 if "norm" in n else w),
        ("llama", "q rows left paired", paired),
        ("llama", "k heads swapped", swapped),
        ("qwen2", "biases left out", lambda n, w: w * 0 if n.endswith("bias") else w),
    ],
)
def test_a_wrong_weight_shows(name: str, what: str, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
    graph, weights = fused(name, "plain")
    broken = {n: np.ascontiguousarray(change(n, w)) for n, w in weights.items()}
    assert any(not np.array_equal(broken[n], weights[n]) for n in weights), what
    assert worst(trace(graph, broken), trace(graph, weights)) > 5 * BAR
