"""Native code against the plan-level reference, one step at a time: each step is fed what the native program fed it.

A wrong tile of one matmul, a scale that is off, or a lost row shows at its own step, long before statistics over
logits would move. The bars are the noise of float32 sums, measured per kind of kernel; int8 codes may differ by one
where a value lies on the edge between two.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import goinfer
from goinfer.bundle_format.kernel_abi import PAGE
from goinfer.bundle_format.plan import Step
from goinfer.codegen import reference as kernels
from goinfer.codegen.mlir_context import load_mlir
from goinfer.codegen.reference_attention import CacheShape, read_position
from goinfer.compiler.plan_reference import F32, Codes, PlanReference, Tape, Value, outputs
from goinfer.gates.native_steps import read_bytes, read_f32, run_by_step

DEFAULT_IDS = 48

BAR = 3e-5
"""Largest difference of an f32 output, relative to the RMS of its row in the reference."""

ATTENTION_BAR = 1e-4
"""The same of attention, whose noise grows with the size of the scores (hundreds in Gemma 3)."""

MATMUL_BAR = 3e-6
"""Largest difference of a matmul's output, relative to its sum of |x| |w|: cancellation makes no noise of its own."""

CODES_APART = 0.05
"""Share of a row's codes that may be one apart; one or two values on an edge is what is seen."""

KV_BAR = {"f32": BAR, "f16": 1.5e-3, "int8": 1.2e-2}
"""Largest difference of a key or value relative to its row's peak: one step of the stored precision."""


@dataclass(frozen=True)
class StepFigures:
    """One output of one step. `worst` is in units of `bar`'s meaning: above the bar the step is wrong."""

    step: str
    kernel: str
    output: str
    worst: float
    bar: float
    row: int

    @property
    def ok(self) -> bool:
        """Written so that a NaN is wrong."""
        return self.worst <= self.bar


def check_steps(model: Any, ids: Sequence[int]) -> list[StepFigures]:
    """Run a prompt natively, step by step, checking every output of every step.

    Raises UsageError for a prompt that the engine would cut into several forwards.
    """
    checker = _Checker(model.engine, ids)
    run_by_step(model.engine, ids, checker.after, checker.before, checker.started)
    checker.greedy(ids)
    return checker.figures


class _Checker:
    """Takes the engine's place for one forward."""

    def __init__(self, engine: Any, ids: Sequence[int]):
        self.engine, self.plan, self.rows = engine, engine.plan, len(ids)
        self.reference = PlanReference(engine.plan, engine.bundle.section("weights"), engine.kv)
        self.tape = Tape(np.asarray(ids, np.int64))
        self.slot = 0
        self.noise: F32 | None = None
        self.figures: list[StepFigures] = []

    def started(self, slot: int) -> None:
        """Which slot holds the keys and values."""
        self.slot = slot

    def greedy(self, ids: Sequence[int]) -> None:
        """The steps that only greedy forwards run, together: their token after the prompt against the reference's."""
        assert self.tape.logits is not None
        with self.engine.new_slot() as slot:
            token = int(self.engine.greedy([(slot, ids)])[0])
        wrong = token != kernels.argmax(self.tape.logits[-1:])[0]
        for step in self.plan.steps:
            if step.domain == "greedy":
                self._note(step, "token", float(wrong), 0.0, [self.rows - 1])

    def before(self, step: Step, kind: str, attrs: Any) -> None:
        """The reference's step, on what the native program has."""
        self.noise = self.reference.magnitude(step, self.tape) if kind == "matmul" else None
        self.reference.apply(step, self.tape)

    def after(self, step: Step, kind: str, attrs: Any) -> None:
        """The native step is done: compare everything it wrote."""
        for name in outputs(kind, attrs, step):
            self._check(step, name)

    def _check(self, step: Step, name: str) -> None:
        """Compare one output, then put the native one on the tape for the steps that follow."""
        if name.startswith("kv:"):
            self._check_kv(step, int(name.removeprefix("kv:")))
        elif name == "io:greedy":
            native = self.engine.program.inputs["greedy"][: self.rows]
            wrong = np.flatnonzero(native != self.tape.greedy)
            self._note(step, "token", float(len(wrong)), 0.0, wrong)
        else:
            wanted = self.tape.logits if name == "io:logits" else self.tape.buffers[name.removeprefix("buf:")]
            assert wanted is not None
            found = self._read(name, wanted)
            if isinstance(wanted, Codes) and isinstance(found, Codes):
                self._compare_codes(step, name, found, wanted)
            elif not isinstance(wanted, Codes) and not isinstance(found, Codes):
                self._compare(step, name, found, wanted)
            self.tape.put(name, found)

    def _read(self, operand: str, like: Value) -> Value:
        """The native program's rows of an operand, in the form the reference has them."""
        if not isinstance(like, Codes):
            return read_f32(self.engine, operand, self.rows, like.shape[1])
        codes, scales, sums, weighted = kernels.unpack_q8(read_bytes(self.engine, operand, self.rows), like.k)
        wrong = ~np.equal(weighted, scales * sums.astype(np.float32))
        sums[wrong] = np.iinfo(np.int32).min  # seen as a wrong sum
        return Codes(codes, scales, sums, like.k)

    def _compare(self, step: Step, name: str, found: F32, wanted: F32) -> None:
        wide = wanted.astype(np.float64)
        bar, noise = MATMUL_BAR, self.noise
        if noise is None:
            bar, noise = self._bar(step), np.sqrt((wide * wide).mean(axis=1, keepdims=True))
        off = (np.abs(found - wide) / (noise + 1e-30)).max(axis=1)
        self._note(step, name, float(off.max()), bar, np.argsort(-off))

    def _bar(self, step: Step) -> float:
        return ATTENTION_BAR if self.reference.kind(step)[0] == "attention" else BAR

    def _compare_codes(self, step: Step, name: str, found: Codes, wanted: Codes) -> None:
        """Scales within the bar, sums consistent, and values within half a step of what was rounded."""
        spread = np.abs(found.scales - wanted.scales) / (np.abs(wanted.scales) + 1e-30)
        sums = found.codes.reshape(*found.sums.shape, -1).sum(axis=2, dtype=np.int32)
        apart = np.abs(found.codes.astype(np.int32) - wanted.codes).max(axis=1)
        share = (found.codes != wanted.codes).mean(axis=1)
        self._note(step, f"{name} scales", float(spread.max()), self._bar(step), np.argsort(-spread.max(axis=1)))
        odd = (sums != found.sums).sum(axis=1)
        self._note(step, f"{name} sums", float(odd.sum()), 0.0, np.argsort(-odd))
        self._note(step, f"{name} codes", float(apart.max()), 1.0, np.argsort(-apart))
        self._note(step, f"{name} codes that differ", float(share.max()), CODES_APART, np.argsort(-share))

    def _check_kv(self, step: Step, layer: int) -> None:
        """Keys and values as the cache holds them now."""
        keys, values = self._cache(layer)
        for name, found, store in (("keys", keys, self.tape.keys), ("values", values, self.tape.values)):
            wanted = store[layer]
            peak = np.abs(wanted).max(axis=1) + np.float32(1e-30)
            off = np.abs(found - wanted).max(axis=1) / peak
            self._note(step, f"kv:{layer} {name}", float(off.max()), KV_BAR[self.engine.kv], np.argsort(-off))
            store[layer] = found

    def _cache(self, layer: int) -> tuple[F32, F32]:
        cache = self.engine.cache
        pool = next(p for p in cache.pools if layer in p.layer_offsets)
        at = pool.group.layers.index(layer)
        group, offset = pool.group, pool.layer_offsets[layer]
        shape = CacheShape(group.n_kv_heads[at], group.head_dims[at], self.engine.kv, offset)
        keys, values = [], []
        for position in range(self.rows):
            address = int(pool.table[self.slot, position // PAGE])
            page = np.frombuffer((ctypes.c_uint8 * pool.page_bytes).from_address(address), np.uint8)
            k, v = read_position(shape, page, position % PAGE)
            keys.append(k.reshape(-1))
            values.append(v.reshape(-1))
        return np.stack(keys), np.stack(values)

    def _note(self, step: Step, output: str, worst: float, bar: float, rows: Any) -> None:
        row = int(rows[0]) if len(rows) else 0
        self.figures.append(StepFigures(step.name, step.kernel, output, worst, bar, row))


@dataclass(frozen=True)
class StepsReport:
    """Every output of every step of one prompt."""

    bundle: str
    figures: list[StepFigures]

    @property
    def exit_code(self) -> int:
        """0 when every step is right."""
        return 0 if self.figures and all(f.ok for f in self.figures) else 1

    def text(self) -> str:
        """The steps that are wrong, the first one first, or the share of its bar that the closest one used."""
        bad = [f for f in self.figures if not f.ok]
        lines = [f"  {f.step} ({f.kernel}) {f.output}: {f.worst:.2e} at row {f.row}, bar {f.bar:.0e}" for f in bad[:8]]
        if bad:
            return "\n".join([f"steps: {self.bundle}: first bad step: {bad[0].step}", *lines])
        used = max((f.worst / f.bar for f in self.figures if f.bar), default=0.0)
        count = f"{len(self.figures)} outputs"
        return f"steps: {self.bundle}: {count} agree with the plan's reference; at most {used:.0%} of a bar"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data."""
        rows = [
            {**vars(f), "ok": f.ok, "worst": f.worst if np.isfinite(f.worst) else str(f.worst)} for f in self.figures
        ]
        return {"bundle": self.bundle, "steps": rows, "exit_code": self.exit_code}


def main_report(bundle: Path, ids: Sequence[int] | None = None) -> tuple[str, dict[str, Any], int]:
    """What the command line prints: text, JSON data, exit code."""
    load_mlir()
    with goinfer.load(bundle) as model:
        prompt = default_ids(model.engine.vocab) if ids is None else [int(i) for i in ids]
        report = StepsReport(bundle.name, check_steps(model, prompt))
    return report.text(), report.as_dict(), report.exit_code


def default_ids(vocab: int, count: int = DEFAULT_IDS) -> list[int]:
    """A prompt where text plays no part: spread over the vocabulary, the same every time."""
    return [int(i) for i in np.random.default_rng(0).integers(0, vocab, count)]
