"""The manifest and its freshness: vocabulary, derived status, stale sources named by file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.families.registry import FAMILIES
from goinfer.gates import fixtures, fresh, sources
from goinfer.gates.manifest import (
    Manifest,
    ManifestError,
    Row,
    method_word,
    read_manifest,
    stamped,
    write_manifest,
)

KINDS = ("matmul", "norm", "attention")


def row(fixture: fixtures.Fixture) -> Row:
    hashes = sources.source_hashes(fixture.family, KINDS)
    return stamped(
        Row(
            family=fixture.family, checkpoint=fixture.name, method="tiny-oracle", passed=True, reference="by hand",
            weights="safetensors", ours="f32", target="t", commit="", date="", machine="", figures={"worst": 1.0},
            kernels=KINDS, fixture=sources.fixture_hash(fixture.files), snapshot=sources.snapshot_id(hashes),
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def fresh_rows() -> Manifest:
    rows = [row(f) for f in fixtures.tiny_fixtures(FAMILIES)]
    return Manifest().updated(rows, {r.snapshot: sources.source_hashes(r.family, KINDS) for r in rows})


@pytest.fixture
def recorded(fresh_rows: Manifest, tmp_path: Path) -> Path:
    write_manifest(fresh_rows, tmp_path / "m.json")
    return tmp_path / "m.json"


def test_round_trip_with_equal_bytes(recorded: Path) -> None:
    before = recorded.read_bytes()
    write_manifest(read_manifest(recorded), recorded)
    assert recorded.read_bytes() == before
    assert sorted(p.name for p in recorded.parent.iterdir()) == ["m.json"]


def test_a_new_row_replaces_the_old_one_and_drops_its_snapshot(recorded: Path) -> None:
    manifest = read_manifest(recorded)
    old = manifest.rows[0]
    alone = [r for r in manifest.rows if r.family == old.family]
    changed = [replace(r, snapshot="new", passed=False) for r in alone]
    after = manifest.updated(changed, {"new": {"a.py": "1"}})
    assert len(after.rows) == len(manifest.rows) and old.snapshot not in after.snapshots
    assert next(r for r in after.rows if r.key == old.key).status == "failed"


def test_status_cannot_be_typed(recorded: Path) -> None:
    raw = json.loads(recorded.read_text())
    raw["rows"][0]["status"] = "proved on released weights"
    recorded.write_text(json.dumps(raw))
    with pytest.raises(ManifestError, match="does not follow"):
        read_manifest(recorded)


@pytest.mark.parametrize("method", ["real oracle", "shared-path", "tiny-oracle via llama", ""])
def test_the_vocabulary_is_closed(method: str) -> None:
    with pytest.raises(ManifestError, match="not one of"):
        method_word(method)


def test_shared_path_names_its_family() -> None:
    assert method_word("shared-path via llama") == "shared-path"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 99, "rows": [], "snapshots": {}}', '{"schema": 1, "rows": [{}]}']
)
def test_damage_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ManifestError, match=r"m\.json"):
        read_manifest(tmp_path / "m.json")


def test_fresh_when_nothing_changed(recorded: Path) -> None:
    report = fresh.run_fresh(path=recorded)
    assert report.exit_code == 0 and report.text().startswith("parity fresh"), report.text()


@pytest.mark.parametrize(
    ("file", "families"),
    [
        ("goinfer/families/gemma3_text.py", ["gemma3_text"]),
        ("goinfer/families/blocks.py", list(FAMILIES)),
        ("goinfer/codegen/kernels/norm.py", list(FAMILIES)),
        ("goinfer/runtime/engine.py", list(FAMILIES)),
    ],
)
def test_a_changed_source_makes_its_families_stale(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, file: str, families: list[str]
) -> None:
    """Red: another hash for one file; the families that depend on it are named with it, and no others."""
    real = sources.file_hash
    monkeypatch.setattr(sources, "file_hash", lambda p: "changed" if str(p).endswith(file) else real(p))
    report = fresh.run_fresh(path=recorded)
    assert report.exit_code == 1 and list(report.stale) == families
    assert f"parity stale: {families[0]} ({file})" in report.text()


def test_a_changed_fixture_makes_its_family_stale(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sources.fixture_hash
    monkeypatch.setattr(
        sources, "fixture_hash", lambda files: "x" if "qwen2" in str(next(iter(files))) else real(files)
    )
    report = fresh.run_fresh(path=recorded)
    assert list(report.stale) == ["qwen2"] and "testdata/tiny/plain" in report.stale["qwen2"]


def test_a_missing_or_failed_row_is_not_fresh(recorded: Path) -> None:
    manifest = read_manifest(recorded)
    write_manifest(replace(manifest, rows=manifest.rows[1:]), recorded)
    assert fresh.run_fresh(path=recorded).exit_code == 1
    write_manifest(replace(manifest, rows=(replace(manifest.rows[0], passed=False), *manifest.rows[1:])), recorded)
    assert "recorded as failed" in fresh.run_fresh(path=recorded).text()
    assert fresh.run_fresh(path=recorded.parent / "none.json").exit_code == 1
    with pytest.raises(UsageError):
        fresh.run_fresh(["nobody"], recorded)


def test_comments_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    hashes = []
    for text in ("x = 1\n", "# why\n\nx = 1  \n    # more\n", "x = 2\n"):
        path.write_text(text)
        hashes.append(sources.file_hash(path))
    assert hashes[0] == hashes[1] != hashes[2]


def test_sources_follow_imports_and_leave_out_what_cannot_matter() -> None:
    found = sources.source_hashes("gemma3_text", KINDS)
    for path in (
        "goinfer/families/gemma3_text.py", "goinfer/families/blocks.py", "goinfer/families/rope.py",
        "goinfer/compiler/reference.py", "goinfer/compiler/plan/lower.py", "goinfer/compiler/giw.irdl.mlir",
        "goinfer/codegen/kernels/matmul.py", "goinfer/codegen/kernels/attention_scores.py",
        "goinfer/runtime/engine.py", "goinfer/runtime/rope_tables.py", "goinfer/bundle_format/plan.py",
        "goinfer/compiler/checkpoints/dequantise.py",
    ):  # fmt: skip
        assert path in found, path
    assert not any("tokenizer" in p or "llama" in p or p.endswith("errors.py") or "/cli/" in p for p in found)
    assert "goinfer/codegen/kernels/topk.py" not in found
