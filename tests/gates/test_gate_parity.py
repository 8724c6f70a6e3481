"""Tiny parity through the native path, and native broken controls that it must refuse."""

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.families.registry import FAMILIES
from goinfer.gates import fixtures, oracle, parity
from goinfer.gates.goldens import Goldens, load_goldens
from goinfer.gates.manifest import TINY_ORACLE, read_manifest
from goinfer.gates.measure import measure, measure_prompt, summary
from goinfer.gates.paths import CHECKOUT
from goinfer.gates.sources import snapshot_id, source_hashes
from tests.gates.conftest import TINY, Bundles


@pytest.fixture(scope="session")
def report() -> parity.Report:
    return parity.run_parity(methods=(TINY_ORACLE,))


def test_every_fixture_of_every_family_passes(report: parity.Report) -> None:
    assert report.exit_code == 0, report.text()
    assert {r.row.family for r in report.results} == set(FAMILIES)
    assert len(report.results) == len(fixtures.tiny_fixtures(FAMILIES)) and not report.not_run


def test_figures_are_far_inside_the_bars(report: parity.Report) -> None:
    for result in report.results:
        figures = result.row.figures
        assert figures["same_next"] == 1.0 and figures["worst_rel_l2"] < 2e-5, result.row.checkpoint
        assert figures["hidden_worst_rel_l2"] < 2e-5 and figures["greedy_equal"] == "3/3"
        assert figures["decode_equals_prefill"] and figures["positions"] > 300


def test_the_report_is_text_and_json(report: parity.Report) -> None:
    json.dumps(report.as_dict(), allow_nan=False)
    assert report.text().count("PASS") == len(report.results)
    assert report.text().endswith(f"parity: {len(report.results)} passed, 0 failed, 0 not run")


def test_rows_are_recorded_only_when_asked(report: parity.Report, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    parity.record_rows(report.results, path)
    stored = read_manifest(path)
    assert len(stored.rows) == len(report.results)
    for row in stored.rows:
        assert row.status == "proved on random weights of the same wiring" and row.commit and row.machine
        assert row.snapshot == snapshot_id(source_hashes(row.family, row.kernels)) and row.snapshot in stored.snapshots
        assert "transformers" in row.reference and row.figures["bars"]["rel_l2"] <= 1e-3


def spoil(model: Any, kind: str, column: tuple[str, int], change: Any) -> None:
    """Change one number of every bound step of a kernel kind."""
    field, index = column
    for i, step in enumerate(model.engine.plan.steps):
        if step.kernel.startswith(kind):
            record = model.engine.program.steps[field]
            record[i, index] = change(record[i, index])


def failures(model: Any, goldens: Goldens) -> list[str]:
    return [line for f in measure(model, goldens) for line in f.failures(goldens.bars)]


@pytest.mark.parametrize(
    ("fixture", "kind", "column", "change"),
    [
        ("llama/plain", "norm", ("float", 0), lambda eps: 2 * eps),
        ("gemma3_text/plain", "norm", ("float", 1), lambda eps: 2 * eps),
        ("gemma3_text/plain", "attention", ("int", 4), lambda window: window and window + 1),
        ("gemma3_text/plain", "attention", ("int", 4), lambda window: window and window - 1),
        ("gemma3_text/softcap", "softcap", ("float", 0), lambda cap: 1.01 * cap),
        ("llama/plain", "qkv_post", ("float", 1), lambda scale: 1.01 * scale),
        ("llama/plain", "norm", ("float", 0), lambda eps: np.nan),
    ],
    ids=["eps", "post-eps", "window+1", "window-1", "cap", "query scale", "NaN"],
)
def test_a_number_changed_in_the_native_program_is_caught(
    bundles: Bundles, fixture: str, kind: str, column: tuple[str, int], change: Any
) -> None:
    """Red: the unchanged program passes, the same program with one attribute changed must not."""
    goldens = load_goldens(TINY / fixture / "goldens.npz")
    goldens = Goldens(goldens.prompts[1:2], goldens.about)
    with bundles.load(fixture) as model:
        assert failures(model, goldens) == []
        spoil(model, kind, column, change)
        assert failures(model, goldens)


class Wrapped:
    """A model whose engine answers single rows one ulp off, or whose greedy text is wrong at the end."""

    def __init__(self, model: Any, wrong: str):
        self._model, self._wrong, self.engine = model, wrong, self

    def forward(self, ids: Any, hidden_states: bool = False, wanted: str = "last") -> Any:
        if isinstance(ids[0], tuple):
            row = self._model.engine.forward(ids, wanted=wanted)
            return np.nextafter(row, np.float32(np.inf)) if self._wrong == "decode" else row
        return self._model.forward(ids, hidden_states)

    def new_slot(self) -> Any:
        return self._model.engine.new_slot()

    def generate(self, ids: Any, **params: Any) -> Any:
        pieces = list(self._model.generate(ids, **params))
        return pieces[:-1] if self._wrong == "greedy" else pieces


@pytest.mark.parametrize("wrong", ["", "decode", "greedy"])
def test_decode_and_greedy_text_are_compared_exactly(llama: Any, llama_goldens: Goldens, wrong: str) -> None:
    """Red with a decode that is one ulp off and with a continuation that is one token short."""
    figures = measure_prompt(Wrapped(llama, wrong), llama_goldens.prompts[0])
    lines = figures.failures(llama_goldens.bars)
    assert [line.split(":")[0] for line in lines] == ([wrong] if wrong else [])


def test_the_summary_takes_the_worst_of_all_prompts(llama: Any, llama_goldens: Goldens) -> None:
    figures = measure(llama, llama_goldens)
    row = summary(figures, llama_goldens.bars)
    assert row["positions"] == llama_goldens.positions and row["prompts"] == 3
    assert row["worst_rel_l2"] == max(f.logits.worst_rel_l2 for f in figures)


def test_a_checkpoint_that_does_not_compile_is_a_failed_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Red before errors became rows: one bad checkpoint ended the gate and left the others unmeasured."""
    good = fixtures.tiny_fixtures(["llama"])[0]
    bad = replace(good, name="tiny/bad", source=tmp_path)
    monkeypatch.setattr(fixtures, "tiny_fixtures", lambda families: [bad, good])
    report = parity.run_parity(["llama"], methods=(TINY_ORACLE,))
    assert [r.row.passed for r in report.results] == [False, True] and report.exit_code == 1
    assert "nothing was measured" in report.text() and report.results[0].row.status == "failed"
    parity.record_rows(report.results, tmp_path / "manifest.json")
    assert not read_manifest(tmp_path / "manifest.json").rows[0].passed


def test_an_unknown_family_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="llamas"):
        parity.main_report(["llamas"])


def test_an_absent_oracle_is_not_run_and_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red before `exit_code` looked at not_run: nothing failed, so the gate passed."""
    monkeypatch.setattr(oracle, "find_spec", lambda name: None)
    report = parity.run_parity(["gemma3_text"], methods=("real-oracle",))
    assert report.exit_code == 3 and not report.results
    assert "NOT RUN" in report.text() and "not installed" in report.text()
    with pytest.raises(oracle.OracleMissing) as caught:
        oracle.Oracle.load(TINY / "llama/plain")
    assert caught.value.exit_code == 3


BASE_ONLY = """
import sys, numpy as np
BANNED = ("mlir", "llvmlite", "gguf", "safetensors", "torch", "transformers", "elftools", "ml_dtypes")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BANNED:
            raise ImportError(f"{name} is not a base dependency")
sys.meta_path.insert(0, Refuse())
def refuse(*a, **k): raise AssertionError("a matrix product of numpy's")
for name in ("matmul", "dot", "einsum", "inner", "vdot", "tensordot"):
    setattr(np, name, refuse)
import goinfer
from pathlib import Path
from goinfer.gates.goldens import load_goldens
from goinfer.gates.measure import measure
goldens = load_goldens(Path(sys.argv[2]))
with goinfer.load(sys.argv[1]) as model:
    lines = [line for f in measure(model, goldens) for line in f.failures(goldens.bars)]
assert not any(name in sys.modules for name in BANNED)
print(len(lines), goldens.positions)
"""


def test_a_bundle_is_measured_with_base_dependencies_and_no_matrix_product(bundles: Bundles) -> None:
    """The native path alone: no compiler, no torch, and numpy's products refused on the way."""
    words = [sys.executable, "-c", BASE_ONLY, str(bundles.path("llama/plain")), str(TINY / "llama/plain/goldens.npz")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "309"]


@pytest.mark.parametrize("folder", ["runtime", "bundle_format"])
def test_the_runtime_has_no_matrix_product_operator(folder: str) -> None:
    """What the test above cannot refuse is `@`: it reaches numpy below Python."""
    for path in sorted((CHECKOUT / "goinfer" / folder).rglob("*.py")):
        found = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(getattr(n, "op", None), ast.MatMult)]
        assert not found, path
