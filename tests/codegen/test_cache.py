"""The cache: what is damaged, cut, misplaced or of other sources counts as absent, and a second run makes nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import goinfer
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import cache, images, workers
from goinfer.codegen.target import target_named
from tests.conftest import TINY, native_target

ROOT = Path(__file__).parents[2]
GGUF = TINY / "llama" / "plain" / "model.gguf"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOINFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_written_is_read(own_cache: Path) -> None:
    cache.write("things", "a", b"data")
    assert cache.read("things", "a") == b"data"
    assert cache.read("things", "b") is None and cache.read("others", "a") is None
    assert [p.name for p in own_cache.iterdir()] == ["things"]


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 35])
def test_a_cut_entry_is_absent(own_cache: Path, cut: int) -> None:
    cache.write("things", "a", b"data")
    entry = own_cache / "things" / "a"
    entry.write_bytes(entry.read_bytes()[:cut])
    assert cache.read("things", "a") is None


@pytest.mark.parametrize("at", [0, 31, 32, 35])
def test_a_damaged_entry_is_absent(own_cache: Path, at: int) -> None:
    """Seen red without the comparison of digests."""
    cache.write("things", "a", b"data")
    entry = own_cache / "things" / "a"
    data = bytearray(entry.read_bytes())
    data[at] ^= 1
    entry.write_bytes(data)
    assert cache.read("things", "a") is None


def test_an_entry_under_another_name_is_absent(own_cache: Path) -> None:
    """Seen red with a digest of the bytes alone."""
    cache.write("things", "a", b"data")
    os.rename(own_cache / "things" / "a", own_cache / "things" / "b")
    assert cache.read("things", "b") is None


def test_keys_tell_parts_apart() -> None:
    assert len({cache.key_of(*p) for p in ([1, 2], ["1", 2], [[1], 2], [b"1", 2], [2, 1], [{"a": 1}])}) == 6


def test_sources_follow_contents_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_ROOT", tmp_path)
    seen = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "y"), ("b.mlir", "y")):
        cache.sources.cache_clear()
        cache._file_digest.cache_clear()
        for old in tmp_path.iterdir():
            old.unlink()
        (tmp_path / name).write_text(text)
        seen.add(cache.sources("."))
    cache.sources.cache_clear()
    assert len(seen) == 4


def test_an_image_of_another_toolchain_is_not_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen red with a key that leaves the versions out."""
    made: list[int] = []

    def compile_all(jobs: list[workers.Job], progress: object = None) -> list[bytes]:
        made.append(len(jobs))
        return workers.compile_all(jobs)

    monkeypatch.setattr(images, "compile_all", compile_all)
    kernels, targets = [Kernel("argmax", "argmax", {})], [target_named(native_target())]
    first = images.compile_images(kernels, targets)
    assert images.compile_images(kernels, targets) == first
    monkeypatch.setattr(cache, "toolchain", lambda: ["another"])
    assert images.compile_images(kernels, targets) == first
    assert made == [3, 0, 3]


RUN = """
import subprocess, sys
import goinfer
def refuse(*_, **__): raise AssertionError("a worker was started")
if sys.argv[2] == "again": subprocess.Popen = refuse
goinfer.prequant({source!r}, sys.argv[1], targets=[{target!r}])
print([m for m in "mlir llvmlite elftools gguf jinja2".split() if m in sys.modules])
"""


def prequant_apart(out: Path, run: str, source: Path = GGUF) -> str:
    """In a new process, which can start no worker if run is "again": the compiler packages that were imported."""
    code = RUN.format(source=str(source), target=native_target())
    settings = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(out), run]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_second_prequant_compiles_nothing(own_cache: Path, tmp_path: Path) -> None:
    """The same bytes, without a worker and without a compiler package. Seen red with any one kind of entry not kept.

    Both in processes of their own: this one may hold the quantisers' code already, and would keep none of it.
    """
    prequant_apart(tmp_path / "a.giw", "first")
    assert prequant_apart(tmp_path / "b.giw", "again") == "[]"
    assert (tmp_path / "b.giw").read_bytes() == (tmp_path / "a.giw").read_bytes()


def test_a_prequant_with_every_entry_damaged_makes_the_same(own_cache: Path, tmp_path: Path) -> None:
    goinfer.prequant(GGUF, tmp_path / "a.giw", targets=[native_target()])
    kinds = {entry.parent.name for entry in own_cache.glob("*/*")}
    assert kinds >= {"kernels", "images", "programs", "tokenizers"}
    for entry in own_cache.glob("*/*"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 0x40
        entry.write_bytes(data)
    goinfer.prequant(GGUF, tmp_path / "b.giw", targets=[native_target()])
    assert (tmp_path / "b.giw").read_bytes() == (tmp_path / "a.giw").read_bytes()
