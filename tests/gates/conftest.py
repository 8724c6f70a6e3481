"""Bundles shared by the gate tests: compiled once a session, loaded once a test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import goinfer
from goinfer.gates.build import machine_target
from goinfer.gates.goldens import Goldens, load_goldens
from goinfer.gates.paths import data_folder

TINY = data_folder() / "tiny"


class Bundles:
    """(fixture, recipe) -> a bundle, made at its first use."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._made: dict[tuple[str, str], Path] = {}

    def path(self, fixture: str, recipe: str = "f32") -> Path:
        if (fixture, recipe) not in self._made:
            out = self._folder / f"{fixture.replace('/', '-')}-{recipe}.giw"
            goinfer.prequant(TINY / fixture, out, quant=recipe, targets=[machine_target()])
            self._made[fixture, recipe] = out
        return self._made[fixture, recipe]

    def load(self, fixture: str, recipe: str = "f32", **options: Any) -> Any:
        return goinfer.load(self.path(fixture, recipe), **options)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("gate-bundles"))


@pytest.fixture
def llama(bundles: Bundles) -> Iterator[Any]:
    with bundles.load("llama/plain") as model:
        yield model


@pytest.fixture(scope="session")
def llama_goldens() -> Goldens:
    return load_goldens(TINY / "llama/plain/goldens.npz")
