"""testdata/parity_manifest.json: what was proved, by which method, on which sources. Read by people and by gates.

`rows` has one entry per family and checkpoint; `snapshots` maps an id to the hashes of the sources that the rows with
that id were measured on. A row's status is derived from its method and verdict, never stored.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from goinfer.bundle_format.errors import GoinferError
from goinfer.gates.paths import CHECKOUT, data_folder

NAME = "parity_manifest.json"
SCHEMA = 1

REAL_ORACLE, TINY_ORACLE, SHARED_PATH, NONE = "real-oracle", "tiny-oracle", "shared-path", "none"
STATUS = {
    REAL_ORACLE: "proved on released weights",
    TINY_ORACLE: "proved on random weights of the same wiring",
    SHARED_PATH: "not proved itself: runs the code of a proved family",
    NONE: "not proved",
}
"""Method -> status of a row that passed. `shared-path` is written "shared-path via FAMILY"."""


class ManifestError(GoinferError):
    """The parity manifest is missing, damaged, or holds a word outside its vocabulary."""


@dataclass(frozen=True)
class Row:
    """One measurement of one checkpoint. `figures` are those of measure.summary; `kernels` the kinds it ran."""

    family: str
    checkpoint: str
    method: str
    passed: bool
    reference: str
    weights: str
    ours: str
    target: str
    commit: str
    date: str
    machine: str
    figures: Mapping[str, Any]
    kernels: tuple[str, ...] = ()
    fixture: str = ""
    snapshot: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def key(self) -> tuple[str, str]:
        """What makes a row replace an older one."""
        return self.family, self.checkpoint

    @property
    def status(self) -> str:
        """Derived: what the method proves if the row passed."""
        return STATUS[method_word(self.method)] if self.passed else "failed"


@dataclass(frozen=True)
class Manifest:
    """All rows, ordered by family and checkpoint, and the sources they were measured on."""

    rows: tuple[Row, ...] = ()
    snapshots: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def updated(self, rows: Iterable[Row], snapshots: Mapping[str, Mapping[str, str]]) -> "Manifest":
        """With these rows in place of older ones of the same key; snapshots that no row names are dropped."""
        merged = {row.key: row for row in (*self.rows, *rows)}
        ordered = tuple(merged[key] for key in sorted(merged))
        used = {row.snapshot for row in ordered}
        every = {**self.snapshots, **snapshots}
        return Manifest(ordered, {name: every[name] for name in sorted(every) if name in used})


def method_word(method: str) -> str:
    """The vocabulary's word of a method. Raises ManifestError for any other spelling."""
    word, _, family = method.partition(" via ")
    if word not in STATUS or (word == SHARED_PATH) != bool(family):
        raise ManifestError(
            f"parity manifest: method {method!r} is not one of {', '.join(STATUS)} (shared-path via FAMILY)"
        )
    return word


def manifest_path() -> Path:
    """The checkout's manifest."""
    return data_folder() / NAME


def read_manifest(path: Path | None = None) -> Manifest:
    """The recorded manifest, empty if there is none yet. Raises ManifestError naming what is wrong with it."""
    path = path or manifest_path()
    if not path.is_file():
        return Manifest()
    try:
        raw = json.loads(path.read_text())
        if raw["schema"] != SCHEMA:
            raise ManifestError(f"{path.name}: schema {raw['schema']}, this version reads {SCHEMA}")
        rows = tuple(_row(entry, path.name) for entry in raw["rows"])
        return Manifest(rows, dict(raw["snapshots"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path.name}: {type(error).__name__} {error}: record it again") from None


def _row(entry: Mapping[str, Any], where: str) -> Row:
    names = {f.name for f in fields(Row)}
    if odd := set(entry) ^ (names | {"status"}):
        raise ManifestError(f"{where}: unknown or missing field {sorted(odd)[0]!r}: record it again")
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in entry.items() if key in names}
    row = Row(**values)
    if entry["status"] != row.status:
        raise ManifestError(
            f"{where}: {row.family} {row.checkpoint}: status {entry['status']!r} does not follow from its method"
        )
    return row


def write_manifest(manifest: Manifest, path: Path | None = None) -> None:
    """Replace the manifest in one step; equal contents give equal bytes."""
    path = path or manifest_path()
    rows = [{**asdict(row), "status": row.status} for row in manifest.rows]
    value = {"schema": SCHEMA, "rows": rows, "snapshots": manifest.snapshots}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def stamped(row: Row) -> Row:
    """The row with the commit, date and machine of now."""
    return replace(row, commit=commit(), date=datetime.now(UTC).strftime("%Y-%m-%d"), machine=machine())


def commit() -> str:
    """The checkout's commit, "+changes" added when files under goinfer/ differ from it; "unknown" without git."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain", "--", "goinfer") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(CHECKOUT), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def machine() -> str:
    """Processor and logical cores."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores"
