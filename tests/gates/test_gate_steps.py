"""Native steps against the plan-level reference, in every precision, and broken steps that must be named."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from goinfer.codegen.reference_attention import quantise_head
from goinfer.compiler.plan_reference import PlanReference
from goinfer.gates.compare import compare_logits
from goinfer.gates.goldens import load_goldens
from goinfer.gates.steps import StepFigures, check_steps
from tests.gates.conftest import TINY, Bundles


def prompt(fixture: str, index: int = 1) -> list[int]:
    return [int(i) for i in load_goldens(TINY / fixture / "goldens.npz").prompts[index].ids]


def wrong(figures: list[StepFigures]) -> list[str]:
    return [f.step for f in figures if not f.ok]


@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("recipe", ["f32", "int8", "int8int8", "int4"])
@pytest.mark.parametrize("fixture", ["llama/plain", "gemma3_text/plain"])
def test_every_step_of_a_program_is_right(bundles: Bundles, fixture: str, recipe: str, kv: str) -> None:
    with bundles.load(fixture, recipe, kv=kv) as model:
        figures = check_steps(model, prompt(fixture))
        assert not wrong(figures), [f for f in figures if not f.ok]
        assert {f.step for f in figures} == {s.name for s in model.engine.plan.steps}


@pytest.mark.parametrize(("fixture", "recipe"), [("qwen2/window", "int4"), ("llama/biases", "int8int8")])
def test_a_prompt_longer_than_an_attention_block(bundles: Bundles, fixture: str, recipe: str) -> None:
    with bundles.load(fixture, recipe) as model:
        assert not wrong(check_steps(model, prompt(fixture, 2)))


@pytest.fixture
def int4(bundles: Bundles) -> Iterator[Any]:
    with bundles.load("llama/plain", "int4", kv="f32") as model:
        yield model


def step_index(model: Any, name: str) -> int:
    return next(i for i, s in enumerate(model.engine.plan.steps) if s.name == name)


def test_one_wrong_weight_block_is_named(int4: Any) -> None:
    """Red: one of the 4-bit blocks of one matrix replaced; statistics over logits would hardly move."""
    i = step_index(int4, "blk.1.ffn_down")
    weight = next(w for w in int4.engine.plan.weights if w.name == "blk.1.ffn_down.weight")
    memory = np.empty(weight.nbytes + 64, np.uint8)
    copy = memory[-memory.ctypes.data % 64 :][: weight.nbytes]  # kernels load weights with aligned instructions
    copy[:] = int4.engine.weights[weight.offset : weight.offset + weight.nbytes]
    copy[288:320] ^= 0x11
    int4.engine.program.steps["ptr"][i, 0] = copy.ctypes.data
    assert wrong(check_steps(int4, prompt("llama/plain"))) == ["blk.1.ffn_down"]


@pytest.mark.parametrize(
    ("kernel", "place", "index", "factor"),
    [("norm", 2, 0, 2.0), ("qkv_post", 1, 1, 1.001), ("norm", -1, 0, 2.0), ("attention", 1, 0, 1.0)],
    ids=["eps", "query scale", "last eps", "nothing"],
)
def test_a_wrong_attribute_is_named(int4: Any, kernel: str, place: int, index: int, factor: float) -> None:
    """Red: one number of one bound step off; only that step is wrong, since each is fed the native inputs."""
    of_kind = [i for i, s in enumerate(int4.engine.plan.steps) if s.kernel.startswith(kernel)]
    int4.engine.program.steps["float"][of_kind[place], index] *= factor
    found = set(wrong(check_steps(int4, prompt("llama/plain"))))
    assert found == ({int4.engine.plan.steps[of_kind[place]].name} if factor != 1.0 else set())


def test_a_whole_run_of_the_reference_agrees_with_the_program(bundles: Bundles) -> None:
    with bundles.load("llama/plain") as model:
        ids = prompt("llama/plain")
        trace = PlanReference(model.engine.plan, model.bundle.section("weights"), model.engine.kv).run(ids)
        logits, hidden = model.forward(ids, hidden_states=True)
        assert compare_logits(logits, trace.logits).worst_rel_l2 < 1e-5
        assert trace.hidden.shape == hidden.shape


def test_int8_keys_round_as_the_kernels_do(int4: Any) -> None:
    reference = PlanReference(int4.engine.plan, int4.bundle.section("weights"), "int8")
    x = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    x[2, :20] = 0
    stored = reference.stored(x, 20)
    for row in range(5):
        for head in range(2):
            codes, scale = quantise_head(x[row, 20 * head : 20 * head + 20])
            assert np.array_equal(stored[row, 20 * head : 20 * head + 20], codes * scale)
