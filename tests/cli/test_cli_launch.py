"""The way in and out of the installed programs: all that is printed and every code arrive; a start imports little."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "import sys; from goinfer.cli.launch import goinfer; sys.exit(goinfer())"


def goinfer(*args: str, flags: tuple[str, ...] = (), **streams: object) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, *flags, "-c", LAUNCH, *args]
    return subprocess.run(command, env=settings, cwd=ROOT, text=True, capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Callable[[str, str, str], Path]) -> Path:
    return tiny_bundle("gguf", "mixed", "int4")


def test_output_and_codes_arrive(bundle: Path) -> None:
    """Seen red with the code dropped at the end."""
    shown = goinfer("inspect", str(bundle), "--plan")
    assert shown.returncode == 0 and len(shown.stdout) > 2000 and shown.stdout.endswith("\n")
    assert goinfer("run", "missing.giw", "-p", "x").returncode == 1
    wrong = goinfer("run", str(bundle), "-p", "x", "--temp", "-1")
    assert wrong.returncode == 2 and "--temp" in wrong.stderr


def imported_by(*args: str) -> set[str]:
    done = goinfer(*args, flags=("-X", "importtime"))
    assert done.returncode == 0, done.stderr[-500:]
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


UNNEEDED = (
    "typer", "click", "rich", "jinja2", "tokenizers", "mlir", "llvmlite", "gguf", "elftools", "numpy.random", "asyncio",
    "concurrent.futures", "logging", "secrets", "difflib", "goinfer.compiler", "goinfer.codegen", "goinfer.serve",
    "goinfer.runtime.chat", "goinfer.runtime.stream_weights", "goinfer.bundle_format.writer",
)  # fmt: skip


def test_a_greedy_run_imports_what_it_needs(bundle: Path) -> None:
    """Seen red with any of these imported at the top of a module of the path."""
    names = imported_by("run", str(bundle), "--raw", "-p", "the", "-n", "1", "--temp", "0")
    assert {"goinfer.cli.run", "goinfer.runtime.engine", "numpy"} <= names
    assert {name for name in names if name in UNNEEDED or name.startswith(tuple(f"{u}." for u in UNNEEDED))} == set()


def test_what_is_asked_for_is_imported(bundle: Path) -> None:
    """The control of the test above: each of these is on the list because some run does need it."""
    names = imported_by("run", str(bundle), "--raw", "-p=the", "-n", "1", "--temp", "1")
    assert {"typer", "numpy.random"} <= names
