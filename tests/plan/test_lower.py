"""Lowering of a small llama: the steps, what they read and write, what the recipe changes, what is refused.

Seen red with: the norm adding a residual that the epilogue already added; activations quantised by a step
of their own although the producer can; layer ends one step early.
"""

import pytest

from goinfer.bundle_format.plan import Plan, PlanError
from goinfer.codegen.errors import CompileError
from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.family import build_model
from goinfer.compiler.graph_view import GraphView
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.compiler.plan.lower import lower, place_weights
from goinfer.compiler.quant.recipes import recipe_named
from goinfer.families.registry import family
from tests.conftest import TINY


def fused(name: str, variant: str = "plain") -> GraphView:
    checkpoint = open_checkpoint(TINY / name / variant)
    graph = build_model(family(checkpoint.architecture), checkpoint).graph
    run_passes(graph)
    return graph.view()


def plan_of(name: str, quant: str) -> Plan:
    plan, stored = lower(fused(name), recipe_named(quant))
    assert [w.name for w in place_weights(stored)] == [s.param.name for s in stored]
    return plan


def kinds(plan: Plan, begin: int, end: int) -> list[str]:
    by_symbol = {k.symbol: k.kind for k in plan.kernels}
    return [by_symbol[s.kernel.replace("{kv}", "f16")] for s in plan.steps[begin:end]]


def test_a_llama_layer_of_quantised_weights_is_nine_or_ten_steps() -> None:
    """head_dim 24 is no multiple of 32, so attention's output takes one quantise step; 104 is none, so the product of
    the gated MLP is a step of its own; everything else is fused."""
    plan = plan_of("llama", "int4")
    begin, end = plan.layer_ends[1], plan.layer_ends[2]
    assert kinds(plan, begin, end) == [
        "matmul", "qkv_post", "attention", "quantise", "matmul", "norm", "matmul", "gate_act", "matmul", "norm",
    ]  # fmt: skip
    adds = [s.name for s in plan.steps[begin:end] if "_add_" in s.kernel]
    assert adds == ["blk.1.attn_output", "blk.1.ffn_down"]


def test_f32_keeps_every_activation_in_f32() -> None:
    plan = plan_of("llama", "f32")
    assert not any(k.kind == "quantise" or k.attrs.get("out") == "q8" for k in plan.kernels)
    assert {k.attrs["format"] for k in plan.kernels if k.kind in ("matmul", "embed")} == {"f32"}


def test_gemma_norms_its_branches_before_they_are_added() -> None:
    plan = plan_of("gemma3_text", "int4")
    norms = [k.attrs for k in plan.kernels if k.kind == "norm"]
    assert {"normed", "none"} == {a["add"] for a in norms}
    assert not any("_add_" in s.kernel for s in plan.steps)
    assert [g.window for g in plan.kv_groups] == [0, 8]
    assert sorted(layer for g in plan.kv_groups for layer in g.layers) == list(range(plan.n_layers))


def test_every_kernel_is_used_and_every_kv_precision_made() -> None:
    plan = plan_of("qwen2", "int8int8")
    used = {s.kernel.replace("{kv}", kv) for s in plan.steps for kv in ("f32", "f16", "int8")}
    assert {k.symbol for k in plan.kernels} == used
    assert any(k.attrs.get("bias") for k in plan.kernels), "qwen2 has q, k, v biases"


def test_a_plan_survives_its_bytes_and_refuses_others() -> None:
    plan = plan_of("llama", "int4")
    assert Plan.from_bytes(plan.to_bytes()) == plan
    cases = (
        (b"\x81\xa3abi\x02", "unknown or missing field"),
        (b"\x81\xa3abi\x01", r"another version of goinfer \(kernel ABI 1, here 2\): prequant again"),
        (b"\xc1", "not msgpack"),
    )
    for damaged, match in cases:
        with pytest.raises(PlanError, match=match):
            Plan.from_bytes(damaged)


def test_precision_rules_of_a_family_lift_int4() -> None:
    _, stored = lower(fused("llama"), recipe_named("int4"), {"blk.0.ffn_down.*": "test"})
    formats = {s.param.name: s.format for s in stored}
    assert formats["blk.0.ffn_down.weight"] == "int8" and formats["blk.1.ffn_down.weight"] == "int4"


def test_an_op_without_lowering_is_named() -> None:
    view = fused("llama")
    bad = next(op for op in view.ops if op.name == "attention")
    odd = type(view)(**{**vars(view), "ops": (type(bad)("mystery", {}, (), {"label": "blk.0.odd"}),)})
    with pytest.raises(CompileError, match=r"op mystery \(blk\.0\.odd\) has no lowering"):
        lower(odd, recipe_named("f32"))
