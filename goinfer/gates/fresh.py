"""`goinfer gate fresh`: do the recorded numbers still describe these sources? Needs no model and no torch.

Every row of the manifest names the hashes of the files its numbers depend on; a file that changed, appeared or went
away since makes the row's family stale.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from goinfer.gates import fixtures, sources
from goinfer.gates.manifest import NAME, Manifest, Row, read_manifest

SHOWN = 6


@dataclass(frozen=True)
class FreshReport:
    """Stale files by family, and families or checkpoints without a row that passed."""

    stale: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    rows: int = 0

    @property
    def exit_code(self) -> int:
        """0 when every checkpoint has a passed row measured on these sources."""
        return 1 if self.stale or self.missing or not self.rows else 0

    def text(self) -> str:
        """One line for each family that is stale or unproved."""
        lines = [f"parity stale: {family} ({_some(files)})" for family, files in self.stale.items()]
        lines += [f"parity missing: {what}" for what in self.missing]
        if not self.rows:
            lines.append(f"parity missing: {NAME} has no rows")
        if lines:
            return "\n".join([*lines, "run `goinfer gate parity --record` and commit the manifest"])
        return f"parity fresh: {self.rows} rows describe these sources"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"stale": self.stale, "missing": self.missing, "rows": self.rows, "exit_code": self.exit_code}


def run_fresh(families: Sequence[str] | None = None, path: Path | None = None) -> FreshReport:
    """Check the rows of the families (default: all). Raises UsageError for an unknown family."""
    chosen, manifest = fixtures.known(families), read_manifest(path)
    report = FreshReport(rows=sum(row.family in chosen for row in manifest.rows))
    for family in chosen:
        rows = {row.checkpoint: row for row in manifest.rows if row.family == family}
        changed = sorted({file for row in rows.values() for file in stale_files(row, manifest)})
        if changed:
            report.stale[family] = changed
        tiny = [f.name for f in fixtures.tiny_fixtures([family])]
        for name in tiny or ["any checkpoint"]:
            if name not in rows:
                report.missing.append(f"{family} {name} has no row")
        report.missing.extend(
            f"{family} {row.checkpoint} is recorded as failed" for row in rows.values() if not row.passed
        )
    return report


def stale_files(row: Row, manifest: Manifest) -> list[str]:
    """Files that are not as they were when the row was measured."""
    then = manifest.snapshots.get(row.snapshot, {})
    now = sources.source_hashes(row.family, row.kernels)
    changed = [path for path in sorted({*then, *now}) if then.get(path) != now.get(path)]
    return changed + _stale_fixture(row)


def _stale_fixture(row: Row) -> list[str]:
    """The fixture's folder if its files changed; a real checkpoint is identified by the row, not by this checkout."""
    for fixture in fixtures.tiny_fixtures([row.family]):
        if fixture.name == row.checkpoint:
            return [] if sources.fixture_hash(fixture.files) == row.fixture else [f"testdata/{row.checkpoint}"]
    return [f"testdata/{row.checkpoint}: gone"] if row.checkpoint.startswith("tiny/") else []


def _some(files: Sequence[str]) -> str:
    more = f", {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return ", ".join(files[:SHOWN]) + more


def main_report(families: list[str] | None = None) -> tuple[str, dict[str, Any], int]:
    """What the command line prints: text, JSON data, exit code."""
    report = run_fresh(families)
    return report.text(), report.as_dict(), report.exit_code
