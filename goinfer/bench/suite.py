"""One run of the benchmark: ceilings, then every piece of work on all arms in interleaved rounds, then processes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from goinfer.bench import process
from goinfer.bench.arms import CHUNK, PEERS, Arm, GoinferArm, open_peer
from goinfer.bench.ceilings import STREAM_BYTES, Ceilings
from goinfer.bench.profile import Line, profile
from goinfer.bench.rounds import Samples, interleave
from goinfer.bench.work import Work, work_of
from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.plan import Plan
from goinfer.bundle_format.reader import Bundle

PREFILLS = (1, 16, 128, 512, 2048)
CONTEXTS = (16, 512, 4096)
BATCHES = (1, 2, 4, 8, 16)
STEPS = 32
"""Tokens of a decode measurement."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to measure. `peers` are (name, file) pairs."""

    bundle: Path
    threads: int
    rounds: int
    peers: Sequence[tuple[str, Path]] = ()
    prefills: Sequence[int] = PREFILLS
    contexts: Sequence[int] = CONTEXTS
    batches: Sequence[int] = BATCHES
    source: Path | None = None
    target: str | None = None
    profile: bool = False


@dataclass
class Results:
    """Everything measured. Rates are tokens/s, one number a round and arm."""

    facts: dict[str, Any]
    work: Work
    read_gbs: float
    dot_gmacs: float
    rates: dict[str, Samples] = field(default_factory=dict)
    seconds: dict[str, Samples] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, list[Line]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def run(request: Request, say: Say) -> Results:
    """Measure. A peer that is not installed or refuses its file is reported as absent."""
    context = max([*request.prefills, *(c + STEPS for c in request.contexts), 64])
    say("ceilings of the machine")
    ceilings = Ceilings()
    arms, absent = _open_arms(request, context)
    try:
        ours = arms[0]
        assert isinstance(ours, GoinferArm)
        engine = ours.model.engine
        context = min(context, engine.context)
        results = Results(
            {"target": engine.target, "threads": request.threads, "kv": engine.kv, "bundle": request.bundle.name,
             "recipe": ours.model.bundle.manifest["recipe"], "layers": engine.plan.n_layers,
             "hidden": engine.plan.hidden, "vocabulary": engine.vocab, "rounds": request.rounds},
            work_of(engine.plan), ceilings.read_bandwidth(request.threads, STREAM_BYTES),
            ceilings.dot_peak(request.threads), absent=absent,
        )  # fmt: skip
        _measure_models(request, arms, ours, context, results, say)
        if request.profile:
            _profile(request, ours, results, say)
    finally:
        for arm in arms:
            arm.close()
    _measure_processes(request, {arm.name for arm in arms}, results, say)
    return results


def _open_arms(request: Request, context: int) -> tuple[list[Arm], list[str]]:
    maximum = _at_most(request.bundle, context)
    arms: list[Arm] = [GoinferArm(request.bundle, request.threads, maximum, target=request.target)]
    absent = [f"{name}: not asked for (--vs {name} MODEL.gguf)" for name in PEERS if name not in dict(request.peers)]
    for name, path in request.peers:
        try:
            arms.append(open_peer(name, path, request.threads, maximum))
        except UsageError as error:
            absent.append(str(error))
    return arms, absent


def _at_most(bundle: Path, wanted: int) -> int:
    """As many positions as are wanted, or the model's maximum."""
    with Bundle.open(bundle, "off") as opened:
        return min(wanted, Plan.from_bytes(opened.section("plan")).max_context)


def _measure_models(
    request: Request, arms: list[Arm], ours: GoinferArm, context: int, results: Results, say: Say
) -> None:
    rng = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        """New ones for every measurement: a peer may remember a prompt that it has seen."""
        return [int(i) for i in rng.integers(100, min(results.facts["vocabulary"], 30000), n)]

    def measure(name: str, work: dict[str, Callable[[], float]]) -> None:
        say(name)
        results.rates[name] = interleave(work, request.rounds)

    for n in (n for n in request.prefills if n <= context):
        measure(f"prefill {n}", {arm.name: partial(_prefill, arm, n, ids) for arm in arms})
    for n in (n for n in request.contexts if n + STEPS <= context):
        measure(f"decode at {n}", {arm.name: partial(_decode, arm, n, ids) for arm in arms})
    for n in request.batches:
        measure(f"decode, batch of {n}", {ours.name: partial(_batch, ours, n)})


def _profile(request: Request, ours: GoinferArm, results: Results, say: Say) -> None:
    """One prefill of the most rows that one forward takes, and a decode at the shortest context."""
    say("profiles")
    engine, context, rows = ours.model.engine, min(request.contexts, default=16), min(CHUNK, ours.model.engine.max_rows)
    prompt = [100 + i % 100 for i in range(max(rows, context))]
    results.profiles = {
        f"prefill {rows}": profile(engine, lambda _: ours.prefill(prompt[:rows]), 1, rows),
        f"decode at {context}": profile(engine, lambda go: ours.decode(prompt[:context], STEPS, go), STEPS, 1),
    }


def _prefill(arm: Arm, n: int, ids: Callable[[int], list[int]]) -> float:
    """Tokens a second."""
    return n / arm.prefill(ids(n))


def _decode(arm: Arm, n: int, ids: Callable[[int], list[int]]) -> float:
    return STEPS / arm.decode(ids(n), STEPS)


def _batch(arm: GoinferArm, n: int) -> float:
    return n * STEPS / arm.batch(n, STEPS)


def _measure_processes(request: Request, present: set[str], results: Results, say: Say) -> None:
    say("processes")
    starts = {"goinfer": process.first_token(request.bundle, request.threads, request.target)}
    for name, path in request.peers:
        if name == "llama.cpp" and name in present:
            starts[name] = process.first_token_llama_cpp(path, request.threads)
    results.seconds["start to first token"] = interleave(starts, request.rounds)
    opening = {"goinfer": lambda: _open_and_verify(request.bundle)}
    results.seconds["open and verify"] = interleave(opening, request.rounds)
    results.memory = process.memory(request.bundle, request.threads, request.target)
    if request.source is not None:
        say("prequant")
        results.seconds["prequant"] = interleave({"goinfer": lambda: _prequant(request)}, 3)
        results.facts["source_bytes"] = request.source.stat().st_size


def _open_and_verify(bundle: Path) -> float:
    started = time.perf_counter()
    with Bundle.open(bundle, "full"):
        return time.perf_counter() - started


def _prequant(request: Request) -> float:
    """With the kernels already in the object cache after the warm-up round."""
    import goinfer

    out = request.bundle.with_suffix(".bench.giw")
    assert request.source is not None
    started = time.perf_counter()
    try:
        goinfer.prequant(request.source, out, quant="int4")
        return time.perf_counter() - started
    finally:
        out.unlink(missing_ok=True)
