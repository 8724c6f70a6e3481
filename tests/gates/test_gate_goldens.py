"""The goldens file: round trip, equal bytes, refusal of damage; and the committed fixtures against their families."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from goinfer.families.registry import FAMILIES, family
from goinfer.gates.compare import EXACT
from goinfer.gates.fixtures import tiny_fixtures
from goinfer.gates.goldens import Goldens, GoldensError, Prompt, load_goldens, save_goldens
from goinfer.gates.oracle import kept_rows
from goinfer.gates.paths import data_folder

TWINNED_OR_NOT = tiny_fixtures(FAMILIES)


def small() -> Goldens:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 8)).astype(np.float32)
    hidden = rng.standard_normal((4, 2, 6)).astype(np.float32)
    prompt = Prompt(np.array([1, 2, 3]), logits, np.array([0, 2]), hidden, np.array([4, 5]))
    return Goldens((prompt,), {"reference": "by hand"})


def test_round_trip_with_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        save_goldens(tmp_path / name, small())
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = load_goldens(tmp_path / "a.npz")
    assert back.about["reference"] == "by hand" and back.positions == 3
    for field in dataclasses.fields(Prompt):
        got, put = getattr(back.prompts[0], field.name), getattr(small().prompts[0], field.name)
        assert np.array_equal(got, put)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz"]


@pytest.mark.parametrize("change", ["ids", "rows", "nan"])
def test_goldens_that_do_not_fit_are_refused(tmp_path: Path, change: str) -> None:
    prompt = small().prompts[0]
    logits = prompt.logits.copy()
    logits[1, 1] = np.nan
    wrong = {"ids": {"ids": np.array([1, 2])}, "rows": {"rows": np.array([0, 3])}, "nan": {"logits": logits}}[change]
    save_goldens(tmp_path / "g.npz", Goldens((dataclasses.replace(prompt, **wrong),), {}))
    with pytest.raises(GoldensError, match=r"g\.npz"):
        load_goldens(tmp_path / "g.npz")


def test_missing_truncated_and_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    with pytest.raises(GoldensError, match="missing"):
        load_goldens(path)
    save_goldens(path, small())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(GoldensError):
        load_goldens(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(GoldensError):
        load_goldens(path)


def test_bars_are_stricter_where_the_noise_floor_allows_it() -> None:
    assert Goldens((), {}).bars == EXACT
    assert Goldens((), {"noise_rel_l2": 1e-5}).bars.rel_l2 == pytest.approx(1e-4)
    assert Goldens((), {"noise_rel_l2": 1.0}).bars.rel_l2 == EXACT.rel_l2


def test_kept_rows_hold_both_ends() -> None:
    rows = kept_rows(264, 48)
    assert len(rows) == 48 and rows[0] == 0 and rows[-1] == 263 and (np.diff(rows) > 0).all()
    assert kept_rows(5, 48).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_variant_of_a_family_has_a_fixture_of_its_config(name: str) -> None:
    """A config that changed without a new fixture would leave the old one proving nothing about it."""
    parity = family(name).parity
    have = {p.name for p in (data_folder() / "tiny" / name).iterdir()}
    assert have == set(parity.tiny)
    for variant, values in parity.tiny.items():
        stored = json.loads((data_folder() / "tiny" / name / variant / "config.json").read_text())
        for key, value in values.items():
            if key in stored and key != "max_position_embeddings":
                assert stored[key] == value, (variant, key)


@pytest.mark.parametrize("fixture", TWINNED_OR_NOT, ids=lambda f: f"{f.family}-{f.name}")
def test_fixtures_have_what_a_gate_needs(fixture) -> None:  # type: ignore[no-untyped-def]
    goldens = load_goldens(fixture.goldens)
    lengths = [len(p.ids) for p in goldens.prompts]
    assert len(lengths) >= 3 and len(set(lengths)) == len(lengths) and max(lengths) > 256
    assert all(len(p.greedy) == 32 for p in goldens.prompts)
    assert goldens.about["noise_rel_l2"] < 1e-4 and goldens.about["least_gap"] > 1e-3
    assert "transformers" in goldens.about["reference"] and "eager" in goldens.about["reference"]
    size = sum(p.stat().st_size for p in fixture.files if p.suffix in (".gguf", ".safetensors"))
    assert size < 700_000
