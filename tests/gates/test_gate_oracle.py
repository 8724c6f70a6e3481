"""The oracle itself, and the gates that need it: real checkpoints, bars of the recipes."""

from pathlib import Path

import numpy as np
import pytest

from goinfer.gates import fixtures, oracle, parity, quality
from goinfer.gates.compare import EXACT, compare_hidden, compare_logits
from goinfer.gates.goldens import load_goldens
from goinfer.gates.oracle_cache import cached_goldens
from goinfer.gates.steps import check_steps
from goinfer.gates.texts import text_ids
from tests.gates.conftest import TINY

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("fixture", ["llama/yarn", "qwen2/window", "gemma3_text/scaled"])
def test_goldens_are_what_transformers_computes(fixture: str) -> None:
    goldens = load_goldens(TINY / fixture / "goldens.npz")
    loaded = oracle.Oracle.load(TINY / fixture)
    for prompt in goldens.prompts[:2]:
        logits, hidden = loaded.forward(prompt.ids.tolist())
        assert compare_logits(logits, prompt.logits).worst_rel_l2 < 1e-5
        plain, _ = compare_hidden(hidden[:, prompt.rows], prompt.hidden)
        assert max(c.worst_rel_l2 for c in plain) < 1e-5
        assert loaded.greedy(prompt.ids.tolist(), 8) == prompt.greedy[:8].tolist()


def test_hidden_states_are_those_of_transformers_plus_the_last_layer_before_its_norm() -> None:
    import torch

    loaded = oracle.Oracle.load(TINY / "gemma3_text/plain")
    ids = [5, 6, 7, 8]
    _, hidden = loaded.forward(ids)
    with torch.no_grad():
        theirs = loaded.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert len(hidden) == len(theirs) + 1
    for ours, state in zip([*hidden[:-2], hidden[-1]], theirs, strict=True):
        assert np.array_equal(ours, state[0].numpy())


def test_a_gguf_file_gives_the_same_reference_as_its_twin() -> None:
    twin = oracle.Oracle.load(TINY / "llama/plain/model.gguf").forward([9, 10, 11])[0]
    assert compare_logits(twin, oracle.Oracle.load(TINY / "llama/plain").forward([9, 10, 11])[0]).failures(EXACT) == []


def test_the_cache_answers_for_the_same_file_and_prompts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOINFER_CACHE", str(tmp_path))
    source, prompts = TINY / "llama/plain/model.gguf", [[1, 2, 3]]
    first = cached_goldens(source, prompts)
    monkeypatch.setattr(oracle.Oracle, "load", lambda path: pytest.fail("computed again"))
    assert np.array_equal(cached_goldens(source, prompts).prompts[0].logits, first.prompts[0].logits)
    with pytest.raises(pytest.fail.Exception):
        cached_goldens(source, [[1, 2, 4]])


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("checkpoint", fixtures.REAL, ids=lambda c: c.family)
def test_a_real_checkpoint_is_the_reference(checkpoint: fixtures.RealCheckpoint) -> None:
    """Bars: cosine 0.99999, relative L2 1e-3, every next token, greedy 32; the tiny controls show what they refuse."""
    outcome = parity.measure_real(checkpoint)
    assert isinstance(outcome, parity.Result), f"not run: {outcome}"
    assert outcome.failures == [] and outcome.row.status == "proved on released weights"


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", quality.RECIPES)
@pytest.mark.parametrize("checkpoint", fixtures.REAL, ids=lambda c: c.family)
def test_recipes_meet_their_bars(checkpoint: fixtures.RealCheckpoint, recipe: str) -> None:
    source = checkpoint.locate()
    assert source is not None, f"not installed: {checkpoint.pip}"
    row = quality.measure_recipe(checkpoint.name, source, recipe)
    assert row.passed and row.figures.positions > 700, row.line()


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", ["int8int8", "int4"])
@pytest.mark.parametrize("checkpoint", fixtures.REAL, ids=lambda c: c.family)
def test_every_step_of_a_real_quantised_bundle_is_right(checkpoint: fixtures.RealCheckpoint, recipe: str) -> None:
    source = checkpoint.locate()
    assert source is not None, f"not installed: {checkpoint.pip}"
    from goinfer.gates.build import loaded

    with loaded(source, recipe) as model:
        figures = check_steps(model, text_ids(model)[:60])
        assert [f for f in figures if not f.ok] == []
