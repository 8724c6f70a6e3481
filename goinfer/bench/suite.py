"""One run of the benchmark: ceilings, then every piece of work on all arms in interleaved rounds, then processes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from goinfer.bench import ceilings
from goinfer.bench.arms import CHUNK, PEERS, Arm, GoinferArm, open_peer
from goinfer.bench.files import bundle_facts, gguf_facts
from goinfer.bench.outside import measure_outside
from goinfer.bench.profile import Line, NoClock, profile
from goinfer.bench.rounds import Samples, interleave
from goinfer.bench.shares import STEPS
from goinfer.bench.work import Work, work_of
from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.plan import Plan
from goinfer.bundle_format.reader import Bundle
from goinfer.codegen.target import TARGETS
from goinfer.runtime.cpu import cpu_flags, usable

PREFILLS = (1, 16, 128, 512, 2048)
CONTEXTS = (16, 512, 4096)
BATCHES = (1, 2, 4, 8, 16)
OURS = "goinfer"
_CEILING = "ceiling"
"""The arm that measures what the machine can do in the same round."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to measure. `peers` are (name, file) pairs; `absent` says why others are not here.

    `source` is the file that the bundle was compiled from in this run, `shape` the name of its random weights' shape.
    """

    bundle: Path
    threads: int
    rounds: int
    peers: Sequence[tuple[str, Path]] = ()
    absent: Sequence[str] = ()
    prefills: Sequence[int] = PREFILLS
    contexts: Sequence[int] = CONTEXTS
    batches: Sequence[int] = BATCHES
    source: Path | None = None
    shape: str | None = None
    target: str | None = None
    lower_targets: bool = True
    prequant: bool = True
    profile: bool = False


@dataclass
class Results:
    """Everything measured. Rates are tokens/s, one number a round and arm; `ceilings` has one a round beside them.

    `lower` holds, for each other target that this machine runs, its ceilings and its rates beside the best target's.
    """

    facts: dict[str, Any]
    work: Work
    machine: dict[str, Any]
    rates: dict[str, Samples] = field(default_factory=dict)
    ceilings: dict[str, list[float]] = field(default_factory=dict)
    lower: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, Samples] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    profiles: dict[str, list[Line]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


def run(request: Request, say: Say) -> Results:
    """Measure. A peer that refuses its file is reported as absent, and the rest is measured without it."""
    say("opening the models")
    with _Run(request, say) as measuring:
        measuring.models()
        if request.lower_targets and request.target is None:
            measuring.lower_targets()
        if request.profile:
            try:
                measuring.profiles()
            except NoClock as error:
                measuring.results.absent.append(str(error))
        results = measuring.results
    measure_outside(request, results, say)
    return results


class _Run:
    """Loaded arms and what was measured of them. Closes the arms at the end of its block."""

    def __init__(self, request: Request, say: Say) -> None:
        self._request, self._say = request, say
        self._rng = np.random.default_rng(0)
        wanted = max([*request.prefills, *(c + STEPS + 2 for c in request.contexts), 64])
        self._context = _at_most(request.bundle, wanted)
        self._ours = GoinferArm(request.bundle, request.threads, self._context, target=request.target)
        self._arms: list[Arm] = [self._ours]

    def __enter__(self) -> "_Run":
        try:
            absent = self._open_peers()
            self._say("ceilings of the machine")
            engine = self._ours.model.engine
            compiled = ceilings.Ceilings(TARGETS.get(engine.target))
            self._meter = ceilings.Meter(compiled, self._request.threads, ceilings.STREAM_BYTES)
            self.results = Results(self._facts(), work_of(engine.plan, engine.kv), {}, absent=absent)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.results.machine = self._meter.as_dict()
        self._close()

    def _close(self) -> None:
        for arm in self._arms:
            arm.close()

    def _open_peers(self) -> list[str]:
        absent = list(self._request.absent)
        for name, path in self._request.peers:
            try:
                self._arms.append(open_peer(name, path, self._request.threads, self._context))
            except UsageError as error:
                absent.append(str(error))
        said = [*dict(self._request.peers), *(reason.split(":")[0] for reason in absent)]
        return [*absent, *(f"{name}: not asked for (--vs {name} MODEL.gguf)" for name in PEERS if name not in said)]

    def _facts(self) -> dict[str, Any]:
        request, engine = self._request, self._ours.model.engine
        present = {arm.name for arm in self._arms}
        return {
            "target": engine.target, "threads": request.threads, "kv": engine.kv, "shape": request.shape,
            "bundle": bundle_facts(request.bundle), "recipe": self._ours.model.bundle.manifest["recipe"],
            "layers": engine.plan.n_layers, "hidden": engine.plan.hidden, "vocabulary": engine.vocab,
            "rounds": request.rounds, "source": None if request.source is None else gguf_facts(request.source),
            "peers": {name: gguf_facts(path) for name, path in request.peers if name in present},
        }  # fmt: skip

    def _ids(self, n: int) -> list[int]:
        """New ones for every measurement: a peer may remember a prompt that it has seen."""
        return [int(i) for i in self._rng.integers(100, min(self._ours.model.engine.vocab, 30000), n)]

    def models(self) -> None:
        """Prefill, decode and batches, each beside the ceiling that bounds it."""
        request = self._request
        for n in self._that_fit("prefill", request.prefills, 0):
            self._measure(f"prefill {n}", {arm.name: partial(self._prefill, arm, n) for arm in self._arms})
        for n in self._that_fit("decode at", request.contexts, STEPS + 1):
            self._say(f"a context of {n}")
            for arm in self._arms:
                arm.hold(self._ids(n))
            self._measure(f"decode at {n}", {arm.name: partial(_decode, arm) for arm in self._arms})
            for arm in self._arms:
                arm.release()
        for n in request.batches:
            self._measure(f"decode, batch of {n}", {OURS: partial(self._batch, n)})

    def _that_fit(self, work: str, lengths: Sequence[int], more: int) -> list[int]:
        """The lengths that the model holds with `more` tokens after them; the others are said."""
        for n in (n for n in lengths if n + more > self._context):
            self.results.absent.append(f"{work} {n}: the model holds {self._context} positions")
        return [n for n in lengths if n + more <= self._context]

    def _measure(self, name: str, work: dict[str, Callable[[], float]]) -> None:
        self._say(name)
        ceiling = self._meter.dots if name.startswith("prefill") else self._meter.read
        samples = interleave({_CEILING: ceiling, **work}, self._request.rounds)
        self.results.ceilings[name] = samples.pop(_CEILING)
        self.results.rates[name] = samples

    def _prefill(self, arm: Arm, n: int) -> float:
        """Tokens a second."""
        return n / arm.prefill(self._ids(n))

    def _batch(self, n: int) -> float:
        return n * STEPS / self._ours.batch(n, STEPS)

    def lower_targets(self) -> None:
        """The bundle's other targets that this machine runs, beside the best, at one prefill and one decode."""
        manifest = self._ours.model.bundle.manifest["targets"]
        best = self._ours.model.engine.target
        for target in usable(manifest, cpu_flags(), TARGETS[best].arch if best in TARGETS else ""):
            if target != best and target in TARGETS:
                self._say(f"target {target}")
                self._lower(target, best)

    def _lower(self, target: str, best: str) -> None:
        rows = min(CHUNK, self._context)
        compiled = ceilings.Ceilings(TARGETS[target])
        rates = compiled.dot_rates(self._request.threads)
        arm = GoinferArm(self._request.bundle, self._request.threads, self._context, target=target)
        try:
            arms = {best: self._ours, target: arm}
            prefill = {name: partial(self._prefill, each, rows) for name, each in arms.items()}
            peak = {_CEILING: lambda: compiled.dots(self._request.threads, ceilings.best(rates))}
            samples = {f"prefill {rows}": interleave({**prefill, **peak}, self._request.rounds)}
            for each in arms.values():
                each.hold(self._ids(16))
            decode = {name: partial(_decode, each) for name, each in arms.items()}
            samples["decode at 16"] = interleave({**decode, _CEILING: self._meter.read}, self._request.rounds)
            self._ours.release()
        finally:
            arm.close()
        self.results.lower[target] = {
            "dot_loops": {f"{n} chains": round(rate, 1) for n, rate in rates.items()},
            "ceilings": {work: taken.pop(_CEILING) for work, taken in samples.items()}, "rates": samples,
        }  # fmt: skip

    def profiles(self) -> None:
        """One prefill of the most rows that one forward takes, and a decode at the shortest context."""
        self._say("profiles")
        ours, engine = self._ours, self._ours.model.engine
        context, rows = min(self._request.contexts, default=16), min(CHUNK, engine.max_rows)

        def prefill(ready: Callable[[], None]) -> float:
            ready()
            return ours.prefill(self._ids(rows))

        self.results.profiles[f"prefill {rows}"] = profile(engine, prefill, 1, rows, 0)
        ours.hold(self._ids(context))
        decode = profile(engine, lambda go: ours.decode(STEPS, go), STEPS, 1, context + 1 + (STEPS - 1) / 2)
        self.results.profiles[f"decode at {context}"] = decode
        ours.release()


def _at_most(bundle: Path, wanted: int) -> int:
    """As many positions as are wanted, or the model's maximum."""
    with Bundle.open(bundle, "off") as opened:
        return min(wanted, Plan.from_bytes(opened.section("plan")).max_context)


def _decode(arm: Arm) -> float:
    """Tokens a second."""
    return STEPS / arm.decode(STEPS)
