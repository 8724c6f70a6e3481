"""Fixtures shared by the suites: tiny bundles, compiled once a run."""

import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores SIGINT, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = Path(__file__).parent.parent / "testdata" / "tiny"


def native_target() -> str:
    """The default target every x86-64-v3 machine and every dot-product arm machine can run."""
    return "x86-64-v3" if platform.machine() == "x86_64" else "aarch64-dotprod"


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep compiled kernels of the test run apart from the user's cache (set GOINFER_CACHE to reuse one)."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    os.environ.setdefault("GOINFER_CACHE", str(shared / "kernel-cache"))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory, kernel_cache: None) -> Callable[..., Path]:
    """Path of a bundle for (family, variant, recipe, target), compiled from testdata/tiny; this machine's base target
    where none is named.

    ("gguf", "mixed") is tests/mixed_gguf.py's file instead.
    """
    import goinfer
    from tests.mixed_gguf import write_mixed_gguf

    made: dict[tuple[str, str, str, str], Path] = {}
    folder = tmp_path_factory.mktemp("bundles")

    def make(family: str, variant: str, quant: str, target: str | None = None) -> Path:
        key = (family, variant, quant, target or native_target())
        if key not in made:
            made[key] = folder / ("-".join(key).replace("/", "-") + ".giw")
            mixed = family == "gguf"
            source = write_mixed_gguf(folder / f"{variant}.gguf") if mixed else TINY / family / variant
            goinfer.prequant(source, made[key], quant=quant, targets=[key[3]])
        return made[key]

    return make
