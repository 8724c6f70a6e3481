"""Each rule of the verifier, broken once in a graph that is valid otherwise; the error names the op."""

import pytest

from goinfer.compiler.graph import Graph
from goinfer.compiler.ops import FUSED, MODEL, GraphError
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.compiler.verify import REWRITING, verify
from goinfer.families.registry import family
from tests.families.memory_checkpoint import tiny_graph

CONFIG = dict(family("gemma3_text").parity.tiny["plain"], num_hidden_layers=1, sliding_window_pattern=1)


def graph_text(stage: str) -> str:
    graph = tiny_graph(family("gemma3_text"), CONFIG)
    if stage == FUSED:
        run_passes(graph)
    return graph.text()


TEXTS = {stage: graph_text(stage) for stage in (MODEL, FUSED)}

BROKEN = [
    (MODEL, "head_dim = 24 : i64, label = \"blk.0.attn\"", "head_dim = 24 : i64, extra = 1 : i64, "
     "label = \"blk.0.attn\"", "attention blk.0.attn: attributes unknown: ['extra']"),
    (MODEL, "eps = 9.9999999999999995E-7 : f64, label = \"blk.0.attn_norm\"", "eps = 0.0 : f64, "
     "label = \"blk.0.attn_norm\"", "rms_norm blk.0.attn_norm: attribute eps = 0.0 is out of range"),
    (MODEL, "fn = \"gelu_tanh\"", "fn = \"gelu\"", "act blk.0.ffn_act: attribute fn = 'gelu' is out of range"),
    (MODEL, "role = \"attn_out\"", "role = \"other\"", "param blk.0.attn_output.weight: attribute role"),
    (MODEL, "softcap = 0.000000e+00 : f64, window = 0", "softcap = -5.0 : f64, window = 0", "softcap = -5.0"),
    (MODEL, "softcap = 0.000000e+00 : f64, window = 0", "softcap = 0x7FF8000000000000 : f64, window = 0",
     "softcap = nan"),
    (MODEL, "softcap = 0.000000e+00 : f64, window = 0", "softcap = 0.0 : f64, window = 4",
     "attention blk.0.attn: window is 4, the declared state has 0"),
    (MODEL, "interleaved = false, label = \"blk.0.q_rope\"", "interleaved = 0 : i64, label = \"blk.0.q_rope\"",
     "rope blk.0.q_rope: attribute interleaved = 0 has the wrong type"),
    (MODEL, "label = \"blk.0.q_rope\", table = \"full\"", "label = \"blk.0.q_rope\", table = \"none\"",
     "rope blk.0.q_rope: rope table none is not declared"),
    (MODEL, "dim = 24 : i64, inv_freq", "dim = 22 : i64, inv_freq", "12 frequencies for 22 elements"),
    (MODEL, "label = \"blk.0.q_rope\"", "label = \"blk.0.k_rope\"", "label blk.0.k_rope is used by two ops"),
    (MODEL, "name = \"blk.0.ffn_up.weight\"", "name = \"blk.0.ffn_gate.weight\"",
     "param blk.0.ffn_gate.weight is used by two ops"),
    (MODEL, "{index = 1 : i64", "{index = 2 : i64", "hidden states [0, 2, 2], expected 0..2 in order"),
    (MODEL, "head_dim = 24 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window",
     "head_dim = 24 : i64, layer = 1 : i64, n_kv_heads = 1 : i64, window", "state of layer 0 is not declared"),
    (MODEL, "head_dim = 24 : i64, layer = 0 : i64, n_kv_heads = 1 : i64, window",
     "head_dim = 24 : i64, layer = 0 : i64, n_kv_heads = 2 : i64, window", "kv_write blk.0.kv: k has width 24"),
    (MODEL, "rows = array<i64: 112>", "rows = array<i64: 111>", "do not add up to 112x64 f32"),
    (FUSED, "rows = array<i64: 96, 24, 24>", "rows = array<i64: 96, 48>", "do not add up to 144x64 f32"),
    (FUSED, "parts = [\"blk.0.ffn_down.weight\"]", "parts = [\"output_norm.weight\"]",
     "param output_norm.weight: the source tensor would be stored twice"),
    (FUSED, "n_heads = 4 : i64, n_kv_heads = 1 : i64, operand", "n_heads = 3 : i64, n_kv_heads = 1 : i64, operand",
     "qkv_post blk.0.attn_qkv_post: qkv has width 144, the heads take 120"),
]  # fmt: skip


@pytest.mark.parametrize("stage", [MODEL, FUSED])
def test_the_unbroken_graphs_are_valid(stage: str) -> None:
    verify(Graph.parse(TEXTS[stage]), stage)
    verify(Graph.parse(TEXTS[stage]), REWRITING)


@pytest.mark.parametrize(("stage", "old", "new", "why"), BROKEN, ids=[row[3] for row in BROKEN])
def test_a_broken_rule_is_named(stage: str, old: str, new: str, why: str) -> None:
    assert old in TEXTS[stage], "the golden text moved; fix the test"
    with pytest.raises(GraphError) as caught:
        verify(Graph.parse(TEXTS[stage].replace(old, new, 1)), stage)
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_result_types_must_follow_from_the_operands() -> None:
    text = "\n".join(
        line.replace("-> tensor<?x112xf32>", "-> tensor<?x111xf32>") if 'ffn_gate"}' in line else line
        for line in TEXTS[MODEL].splitlines()
    )
    with pytest.raises(GraphError, match="graph text:"):
        verify(Graph.parse(text), MODEL)  # the user of the value has another type in the text
    lone = '"giw.softcap"(%0) {cap = 1.0 : f64, label = "c"} : (tensor<?x8xf32>) -> tensor<?x9xf32>'
    body = f'%0 = "giw.token_ids"() {{label = "i"}} : () -> tensor<?x8xf32>\n%1 = {lone}'
    with pytest.raises(GraphError, match=r"token_ids i: results are Rx8 f32, the operands give R i32"):
        verify(Graph.parse(body), MODEL)


def test_stages_refuse_each_others_ops() -> None:
    with pytest.raises(GraphError, match=r"qkv_post .*: the op is not part of the model stage"):
        verify(Graph.parse(TEXTS[FUSED]), MODEL)
    with pytest.raises(GraphError, match="the op is not part of the fused stage"):
        verify(Graph.parse(TEXTS[MODEL]), FUSED)
    with pytest.raises(GraphError, match="stage 'final'"):
        verify(Graph.parse(TEXTS[MODEL]), "final")


def test_a_graph_states_its_model_once() -> None:
    line = next(row for row in TEXTS[MODEL].splitlines() if "giw.model" in row)
    for text, count in ((TEXTS[MODEL].replace(line, ""), 0), (TEXTS[MODEL].replace(line, line + "\n" + line), 2)):
        with pytest.raises(GraphError, match=f"graph: {count} model ops, expected one"):
            verify(Graph.parse(text), MODEL)


@pytest.mark.parametrize("op", ["token_ids", "output"])
def test_a_graph_has_one_input_and_one_output(op: str) -> None:
    line = next(row for row in TEXTS[MODEL].splitlines() if f"giw.{op}" in row)
    again = line.replace("%0 =", "%ids =").replace(f'label = "{op}"', 'label = "again"')
    with pytest.raises(GraphError, match=f"graph: 2 {op} ops, expected one"):
        verify(Graph.parse(TEXTS[MODEL].replace(line, line + "\n" + again)), MODEL)


def test_state_is_written_once_and_before_it_is_read() -> None:
    write = next(row for row in TEXTS[MODEL].splitlines() if "giw.kv_write" in row)
    with pytest.raises(GraphError, match="kv_write again: state of layer 0 is written twice"):
        verify(Graph.parse(TEXTS[MODEL].replace(write, write + "\n" + write.replace("blk.0.kv", "again"))), MODEL)
    with pytest.raises(GraphError, match=r"attention blk.0.attn: state of layer 0 is read before it is written"):
        verify(Graph.parse(TEXTS[MODEL].replace(write, "")), MODEL)
