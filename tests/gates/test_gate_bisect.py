"""Bisect names the layer and the op that was broken on purpose, and says which side is at fault."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.families.registry import family
from goinfer.gates import bisect, oracle
from goinfer.gates.mutations import swapped, with_config, with_layers, without_norm
from tests.gates.conftest import TINY, Bundles


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("fixture", ["llama/plain", "gemma3_text/plain.gguf"])
def test_a_good_model_has_no_bad_layer(fixture: str) -> None:
    text, data, code = bisect.main_report(fixture)
    assert code == 0 and data["first_bad_layer"] is None and not data["ops"]
    assert "agree with goldens" in text


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    ("fixture", "step", "layer"),
    [
        ("llama/plain", "blk.1.ffn_norm", "layer 1"),
        ("gemma3_text/plain", "blk.3.attn_norm", "layer 3"),
        ("gemma3_text/plain", "output_norm", "final norm"),
    ],
)
def test_a_native_fault_is_named(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch, fixture: str, step: str, layer: str
) -> None:
    """Red: eps times 1000 in one bound step of the native program."""

    @contextmanager
    def spoilt(*_: Any) -> Iterator[Any]:
        with bundles.load(fixture) as model:
            names = [s.name for s in model.engine.plan.steps]
            model.engine.program.steps["float"][names.index(step), 0] *= 1000
            yield model

    monkeypatch.setattr(bisect, "opened", spoilt)
    report = bisect.run_bisect(TINY / fixture)
    assert report.exit_code == 1 and report.first_bad is not None and report.first_bad.name == layer
    assert "native code is at fault" in report.culprit
    assert next(op.label for op in report.ops if op.bad) == step
    assert all(not op.bad for op in report.ops[: [op.bad for op in report.ops].index(True)])


@pytest.mark.usefixtures("no_torch")
def test_without_the_oracle_a_wrong_graph_is_named_by_its_layer() -> None:
    wrong = swapped("ffn_gate", "ffn_up")(family("llama"))
    report = bisect.run_bisect(TINY / "llama/plain", family=wrong)
    assert report.first_bad is not None and report.first_bad.name == "layer 0"
    assert "graph disagrees" in report.culprit and "pip install" in report.text()


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("fixture", "change", "layer", "op"),
    [
        ("llama/plain", swapped("ffn_gate", "ffn_up"), "layer 0", "blk.0.ffn_gate = model.layers.0.mlp.gate_proj"),
        ("gemma3_text/plain", with_layers(qk_norm=False), "layer 0", "blk.0.attn_output"),
        ("gemma3_text/plain", without_norm(".2.post_attention_norm.weight"), "layer 2", "blk.2.ffn_norm"),
        ("gemma3_text/plain", with_layers(window=8), "layer 5", "blk.5.attn_output"),
        ("llama/plain", with_config(embed_scale=2.0), "embedding", "token_embd = model.embed_tokens"),
    ],
    ids=["gate/up", "q/k norm", "post norm", "window", "embed scale"],
)
def test_a_wrong_graph_is_named_by_its_op(fixture: str, change: Any, layer: str, op: str) -> None:
    """Red: the family changed on purpose; transformers' modules say where the graph leaves them."""
    report = bisect.run_bisect(TINY / fixture, family=change(family(fixture.split("/", maxsplit=1)[0])))
    assert report.first_bad is not None and report.first_bad.name == layer
    assert "graph disagrees" in report.culprit
    assert next(o.label for o in report.ops if o.bad).startswith(op)


def test_a_quantised_bundle_is_checked_against_its_own_plan(bundles: Bundles) -> None:
    """It differs from the float32 reference everywhere by design, which would name layer 0 of a good bundle."""
    text, data, code = bisect.main_report("llama/plain", bundle=str(bundles.path("llama/plain", "int4")))
    assert code == 0 and "agree with the plan's reference" in text and len(data["steps"]) > 50


def test_a_name_that_is_nothing_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="neither a checkpoint"):
        bisect.main_report("llama/nothing")
