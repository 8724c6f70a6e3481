"""What is measured outside of a loaded model: whole processes, opening a bundle, memory, compiling."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from goinfer.bench import process
from goinfer.bench.rounds import interleave
from goinfer.bundle_format.reader import Bundle

if TYPE_CHECKING:
    from goinfer.bench.suite import Request, Results, Say

OURS = "goinfer"
COLD_ROUNDS = 3
"""At most so many rounds of compiling a model with all its kernels."""


def measure_outside(request: "Request", results: "Results", say: "Say") -> None:
    """Start to first token, open and verify, resident memory, and prequant where this run has the source."""
    say("processes")
    starts = {OURS: process.first_token(request.bundle, request.threads, request.target)}
    for name, path in request.peers:
        if name == "llama.cpp" and name in results.facts["peers"]:
            starts[name] = process.first_token_llama_cpp(path, request.threads)
    results.seconds["start to first token"] = interleave(starts, request.rounds)
    results.seconds["open and verify"] = interleave({OURS: lambda: _open_and_verify(request.bundle)}, request.rounds)
    results.memory = process.memory(request.bundle, request.threads, request.target)
    if request.source is not None and request.prequant:
        say("prequant")
        source, rounds = request.source, request.rounds
        results.seconds["prequant"] = interleave({OURS: lambda: _prequant(source)}, rounds)
        say("prequant without compiled kernels")
        cold = interleave({OURS: lambda: _prequant_cold(source)}, min(COLD_ROUNDS, rounds), warm_ups=0)
        results.seconds["prequant, kernels too"] = cold


def _open_and_verify(bundle: Path) -> float:
    started = time.perf_counter()
    with Bundle.open(bundle, "full"):
        return time.perf_counter() - started


def _prequant(source: Path) -> float:
    """Seconds of compiling a bundle; its kernels are in the object cache after the first time."""
    import goinfer

    with tempfile.TemporaryDirectory(prefix="goinfer-bench-") as folder:
        started = time.perf_counter()
        goinfer.prequant(source, Path(folder) / "m.giw", quant="int4")
        return time.perf_counter() - started


def _prequant_cold(source: Path) -> float:
    """The same with an object cache that is empty."""
    with tempfile.TemporaryDirectory(prefix="goinfer-bench-") as folder, _environment("GOINFER_CACHE", folder):
        return _prequant(source)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
