"""The giw dialect: one declaration, unknown and ill-typed ops refused, text read back to an equal graph."""

import numpy as np
import pytest

from goinfer.compiler.graph import Graph, GraphBuilder, KvLayer, ModelInfo
from goinfer.compiler.ir import from_attribute, ir, new_context, signatures, to_attribute
from goinfer.compiler.ops import OPS, GraphError
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.compiler.reference import RopeTable
from goinfer.families.registry import FAMILIES, family
from tests.families.memory_checkpoint import tiny_graph

PARAM = '%0 = "giw.param"() {{name = {name}, role = "norm", parts = ["a"], rows = array<i64: 4>}} : () -> {type}'


def test_the_op_list_is_the_declaration() -> None:
    assert set(signatures()) == set(OPS)


def test_every_op_says_its_maths_and_stages() -> None:
    for name, op in OPS.items():
        assert op.maths.endswith(".") and op.stages, name
        facts = ("model", "rope_table", "kv_cache", "param")
        assert (op.reference is None) == (name in facts), name


def test_signatures_know_optional_operands() -> None:
    assert signatures()["linear"].operands == (("x", False), ("weight", False), ("bias", True))
    assert signatures()["qkv_post"].segmented and not signatures()["linear"].segmented
    assert signatures()["add_norm"].results == ("sum", "normed")
    assert signatures()["embed"].attributes == {"label": "#builtin.string", "scale": "#builtin.float"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"giw.bogus"() : () -> ()', "unregistered operation"),
        ('"other.op"() : () -> ()', "unregistered"),
        (PARAM.format(name="3 : i64", type="tensor<4xf32>"), "expected base attribute 'builtin.string'"),
        (PARAM.format(name='"a"', type="i32"), "expected base type 'builtin.tensor'"),
        (PARAM.replace("name = {name}, ", "").format(type="tensor<4xf32>"), '"name" is expected'),
        ('%0 = "giw.token_ids"() {label = "ids"} : () -> (tensor<?xi32>, tensor<?xi32>)', "result"),
        ('"giw.output"() {label = "out"} : () -> ()', "operand"),
        ("not a module", "custom op"),
    ],
)
def test_ill_typed_text_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(GraphError, match="graph text:") as caught:
        Graph.parse(text)
    assert why in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "tiny"), [(f, t) for f in FAMILIES for t in family(f).parity.tiny])
def test_text_round_trip(name: str, tiny: str) -> None:
    """Model and fused stage print, parse and print the same; the views are equal, floats to the last bit."""
    graph = tiny_graph(family(name), dict(family(name).parity.tiny[tiny], tie_word_embeddings=None))
    for step in (lambda g: None, run_passes):
        step(graph)
        again = Graph.parse(graph.text())
        assert again.text() == graph.text()
        assert again.view() == graph.view()


@pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, 1.0, 3.5e38, 9.999999974752427e-07])
def test_float_attributes_are_exact(value: float) -> None:
    with new_context(), ir.Location.unknown():
        attribute = to_attribute("#builtin.float", value)
        assert from_attribute(ir.Attribute.parse(str(attribute))) == value


def test_list_attributes_are_exact_float32() -> None:
    g = GraphBuilder()
    g.model(ModelInfo("test", 8, 8, 1, 8))
    bits = np.random.default_rng(0).integers(1, 0x7F000000, 2000).astype(np.uint32)
    table = RopeTable(4000, tuple(float(f) for f in bits.view(np.float32)), 0.1 + 0.2)
    g.rope_table("rope", table)
    assert Graph.parse(g.graph.text()).view().ropes == {"rope": table}


def test_attribute_of_another_kind_is_refused() -> None:
    with new_context(), ir.Location.unknown():
        with pytest.raises(GraphError, match="does not fit"):
            to_attribute("#builtin.integer", "three")
        with pytest.raises(GraphError, match="does not use"):
            from_attribute(ir.FloatAttr.get_f32(1.0))


def test_builder_infers_shapes_and_refuses_misfits() -> None:
    g = GraphBuilder()
    x = g.embed(g.token_ids(), "e.weight", 32, 8)
    assert str(g.linear(x, "a", 12, "mlp_down").type) == "tensor<?x12xf32>"
    assert str(g.slice(x, "s", 2, 3).type) == "tensor<?x3xf32>"
    with pytest.raises(GraphError, match="add sum: x and y differ in width"):
        g.add(x, g.linear(x, "b", 4, "mlp_down"), "sum")
    with pytest.raises(GraphError, match=r"slice s: columns 6\.\.10 leave the width 8"):
        g.slice(x, "s", 6, 4)
    with pytest.raises(GraphError, match="n_kv_heads does not divide"):
        g.attention(g.linear(x, "q", 12, "attn_qkv"), "a", layer=0, n_heads=3, state=KvLayer(2, 4), scale=1.0)
    with pytest.raises(GraphError, match=r"param e.weight: used as"):
        g.logits(x, "e.weight", 33)
    with pytest.raises(GraphError, match="rms_norm n: size 3 does not divide the width 8"):
        g.rms_norm(x, "n.weight", 1e-5, 3)


def test_a_second_use_of_a_name_shares_the_parameter() -> None:
    g = GraphBuilder()
    g.model(ModelInfo("test", 32, 8, 1, 8))
    x = g.embed(g.token_ids(), "e.weight", 32, 8)
    g.logits(x, "e.weight", 32)
    assert [p.name for p in g.graph.view().params.values()] == ["e.weight"]
