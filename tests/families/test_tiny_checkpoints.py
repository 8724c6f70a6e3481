"""The committed tiny checkpoints through the real readers and the reference executor, against their goldens."""

from pathlib import Path

import numpy as np
import pytest

from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.family import build_model
from goinfer.compiler.interpret import run
from goinfer.compiler.passes.pipeline import run_passes
from goinfer.families.registry import FAMILIES, family
from goinfer.gates.goldens import load_goldens

TINY = Path(__file__).parents[2] / "testdata" / "tiny"
VARIANTS = sorted(path.relative_to(TINY).as_posix() for path in TINY.glob("*/*") if path.is_dir())
SOURCES = [f"{v}/model.gguf" for v in VARIANTS if (TINY / v / "model.gguf").exists()] + VARIANTS
BAR = 2e-5  # relative L2 error of a position; measured: below 1e-5


def relative(got: np.ndarray, want: np.ndarray) -> float:
    gap = np.linalg.norm(got.astype(np.float64) - want, axis=-1)
    return float((gap / np.linalg.norm(want.astype(np.float64), axis=-1)).max())


def test_every_tiny_config_has_its_checkpoint() -> None:
    assert set(VARIANTS) == {f"{name}/{tiny}" for name in FAMILIES for tiny in family(name).parity.tiny}


@pytest.mark.parametrize("source", SOURCES)
def test_reference_matches_transformers(source: str) -> None:
    checkpoint = open_checkpoint(TINY / source)
    built = build_model(family(checkpoint.architecture), checkpoint)
    run_passes(built.graph)
    view = built.graph.view()
    variant = TINY / source.removesuffix("/model.gguf")
    for prompt in load_goldens(variant / "goldens.npz").prompts[:2]:
        got = run(view, prompt.ids.tolist(), built.weights.read)
        assert relative(got.logits, prompt.logits) <= BAR
        assert relative(got.hidden[:, prompt.rows], prompt.hidden) <= BAR
        assert np.array_equal(got.logits.argmax(1), prompt.logits.argmax(1))
