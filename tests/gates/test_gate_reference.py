"""The graph and the fixtures: the reference executor meets the goldens, and every broken control misses them."""

from dataclasses import replace

import numpy as np
import pytest

from goinfer.families.registry import FAMILIES
from goinfer.gates.fixtures import Fixture, tiny_fixtures
from goinfer.gates.goldens import load_goldens
from goinfer.gates.mutations import MUTATIONS, Mutation, build, compare, run_mutation, table

FIXTURES = {f"{f.family}/{f.name.removeprefix('tiny/')}": f for f in tiny_fixtures(FAMILIES)}
CONTROLS = [(m, key) for m in MUTATIONS for key in m.fixtures]


@pytest.mark.parametrize("fixture", FIXTURES.values(), ids=FIXTURES.keys())
def test_the_graph_computes_what_transformers_computed(fixture: Fixture) -> None:
    """The longest prompt; tests/families runs the others, after the passes."""
    goldens = load_goldens(fixture.goldens)
    goldens = replace(goldens, prompts=goldens.prompts[2:])
    built = build(fixture, lambda family: family)
    for logits, hidden in compare(built, built.weights.read, goldens):
        for figures in (logits, *hidden):
            assert figures.failures(goldens.bars) == []
            assert figures.worst_rel_l2 < 2e-5, "the graph is float64 inside: it should be nearer than the bar asks"


@pytest.mark.parametrize(
    ("mutation", "key"), CONTROLS, ids=[f"{m.name}-{key}".replace(" ", "_") for m, key in CONTROLS]
)
def test_a_broken_control_is_caught(mutation: Mutation, key: str) -> None:
    """Red by construction: each control is wrong on purpose and the gate must say so.

    "erf for tanh GELU" was not caught at the common bar of 1e-3 (it moves logits by 8.6e-4), which is why a fixture's
    bar is ten times its noise floor where that is less.
    """
    fixture = FIXTURES[key]
    caught = run_mutation(mutation, key, fixture, load_goldens(fixture.goldens), prompts=2)
    assert caught.caught, table([caught])
    assert np.isnan(caught.logits_rel_l2) == ("NaN" in mutation.name)


def test_every_family_has_its_controls() -> None:
    assert {key.split("/")[0] for _, key in CONTROLS} == set(FAMILIES)
