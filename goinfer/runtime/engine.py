"""The engine: rows in, logits out. One program serves single prompts, batches and prompt chunks alike.

A forward works on rows (slot, position, token). The result of a row is the same bytes whatever the number of threads,
the other rows, or how a prompt was cut into forwards.
"""

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.bundle_format.kernel_abi import CTX, FORWARD_SYMBOL, KV_DTYPES, PAGE
from goinfer.bundle_format.plan import Plan
from goinfer.bundle_format.reader import Bundle
from goinfer.runtime.code_image import CodeImage
from goinfer.runtime.cpu import choose_target
from goinfer.runtime.errors import ClosedError, ContextError, ForkedError
from goinfer.runtime.kv_cache import KVCache, SlotError
from goinfer.runtime.program import Program, exports_of
from goinfer.runtime.threads import MAX_THREADS, Workers, usable_cores

DEFAULT_CONTEXT = 4096
_LOGITS_BUDGET = 64 << 20
"""Bytes of logits one chunk may produce when every row is wanted."""


class TokenError(GoinferError):
    """A token id is outside the vocabulary."""


class Slot:
    """One sequence: its length and its pages. Close it, or use it as a context manager."""

    def __init__(self, engine: "Engine", index: int, length: int = 0):
        self._engine = engine
        self.index = index
        self.length = length

    def close(self) -> None:
        """Give the slot back; closing twice is harmless."""
        index, self.index = self.index, -1
        if index >= 0:
            self._engine.give_back(index)

    def fork(self) -> "Slot":
        """A copy that shares all state so far; pages are copied when one of the two writes to them."""
        with self._engine.exclusive() as cache:
            self._check_open()
            return Slot(self._engine, cache.fork(self.index), self.length)

    def truncate(self, length: int) -> None:
        """Go back to an earlier length. Raises SlotError where a window has already released what that needs."""
        if not 0 <= length <= self.length:
            raise SlotError(f"cannot truncate a slot of length {self.length} to {length}")
        with self._engine.exclusive() as cache:
            self._check_open()
            for pool in cache.pools:
                oldest = max(0, length - pool.group.window + 1) // PAGE if pool.group.window else 0
                if np.any(pool.table[self.index, oldest : -(-length // PAGE)] == 0):
                    raise SlotError(f"cannot truncate to {length}: a window of {pool.group.window} has moved past it")
            cache.truncate(self.index, length)
            self.length = length

    def _check_open(self) -> None:
        if self.index < 0:  # as an index it would mean the last slot, another caller's
            raise SlotError("the slot is closed")

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Options:
    """How to load: worker threads (default: usable cores), KV precision, positions a slot may hold, slots, rows."""

    threads: int | None = None
    kv: str | None = None
    context: int | None = None
    target: str | None = None
    max_rows: int = 512
    slots: int = 8


class Engine:
    """A loaded program. Threads may share it: one forward runs at a time, other callers wait for it."""

    def __init__(self, bundle: Bundle, options: Options | None = None):
        options = options or Options()
        _check_sizes(options)
        self.bundle = bundle
        self.plan = Plan.from_bytes(bundle.section("plan"))
        self.target = choose_target(bundle.manifest["targets"], options.target)
        self.kv = options.kv or str(bundle.manifest["default_kv"])
        if self.kv not in KV_DTYPES:
            raise UsageError(f"kv {self.kv!r} is unknown; choose one of {', '.join(KV_DTYPES)}")
        self.context = _context(self.plan, options.context)
        self.max_rows = max(1, min(options.max_rows, self.context))
        self.image = CodeImage(bundle, self.target, exports_of(bundle.manifest, self.target))
        self.weights = np.frombuffer(bundle.section("weights"), np.uint8)
        self.cache = KVCache(self.plan.kv_groups, self.kv, options.slots, self.context)
        self.program = Program(
            self.plan, self.image, int(self.weights.ctypes.data), self.cache, self.kv, self.max_rows
        )
        self._counters = np.zeros(len(self.plan.steps), np.int64)
        self._ctx = np.zeros(1, CTX)
        self._ctx["steps"] = self.program.steps.ctypes.data
        self._ctx["counters"] = self._counters.ctypes.data
        self.threads = usable_cores() if options.threads is None else options.threads
        workers = Workers(self.image, self._ctx, self.threads)
        # Workers run mapped code over this memory: closed, dropped or at exit, they end before any of it goes.
        self._stop = weakref.finalize(self, _stop_workers, workers, self.image, self._ctx, self._counters, self.program)
        self._forward = self.image.function(FORWARD_SYMBOL, None, ctypes.c_void_p)
        self._lock = threading.Lock()
        self._given_back: deque[int] = deque()
        self._process = os.getpid()
        self.before_layer: Callable[[int], None] | None = None

    @property
    def vocab(self) -> int:
        """Size of the vocabulary, without padding."""
        return self.plan.vocab

    def new_slot(self) -> Slot:
        """An empty sequence; raises SlotError when all slots are in use."""
        with self.exclusive() as cache:
            return Slot(self, cache.open())

    @contextmanager
    def exclusive(self) -> Iterator[KVCache]:
        """The KV cache with no forward running, and with the slots that were closed free again."""
        try:
            with self._lock:
                self._free_slots()
                yield self.cache
        finally:
            self._free_slots_if_idle()  # those given back meanwhile

    def give_back(self, index: int) -> None:
        """Free a slot now, or when the operation that is running ends.

        It never waits: the garbage collector may close a slot in a thread that is inside a forward itself.
        """
        self._given_back.append(index)
        self._free_slots_if_idle()

    def _free_slots_if_idle(self) -> None:
        """Whoever holds the lock comes here after releasing it, so no slot is forgotten."""
        if self._given_back and self._lock.acquire(blocking=False):
            try:
                self._free_slots()
            finally:
                self._lock.release()

    def _free_slots(self) -> None:
        while self._given_back:
            self.cache.close(self._given_back.popleft())

    def forward(self, batch: Sequence[tuple[Slot, Sequence[int]]], wanted: str = "last") -> np.ndarray:
        """Append tokens to slots and compute logits, float32 [wanted rows, vocab] in batch order.

        wanted: "last" (the last row of each entry), "all", or "none". Raises ContextError before anything is
        written when a slot would grow past the context, TokenError for an id outside the vocabulary.
        """
        with self.exclusive():
            return self._run(batch, wanted, None)

    def greedy(self, batch: Sequence[tuple[Slot, Sequence[int]]], choices: int | None = None) -> np.ndarray:
        """Append tokens to slots; the likeliest next token of each entry, int32 [entries], without logits.

        `choices`: how many ids, from 0 on, there are to choose from (default: the vocabulary). -1 where the largest
        logit is no finite number. The tokens are those that the logits of `forward` give. Raises what `forward` does.
        """
        choices = self.plan.vocab if choices is None else choices
        tokens = np.empty(len(batch), np.int32)
        with self.exclusive():
            self.program.set_choices(choices)
            self._run(batch, "last" if self.program.greedy_wants_logits else "greedy", None, tokens)
        return tokens

    def forward_hidden(self, slot: Slot, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Logits of every row, and hidden states [n_layers + 2, rows, hidden]: embedding, layers, final norm."""
        hidden = np.empty((self.plan.n_layers + 2, len(ids), self.plan.hidden), np.float32)
        with self.exclusive():
            return self._run([(slot, ids)], "all", hidden), hidden

    def _run(
        self, batch: Sequence[tuple[Slot, Sequence[int]]], wanted: str, hidden: np.ndarray | None,
        tokens: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Run the entries in chunks; `tokens` takes the greedy token of each. `wanted` "greedy" makes no logits."""
        if not self._stop.alive:
            raise ClosedError("the model is closed: load it again")
        if os.getpid() != self._process:
            raise ForkedError("this process is a fork of the one that loaded the model: load it again here")
        self.bundle.raise_if_damaged()
        entries = [(slot, _token_ids(ids)) for slot, ids in batch]
        self._check(entries)
        total = sum(len(ids) for _, ids in entries)
        n_wanted = {"last": len(entries), "all": total, "none": 0, "greedy": 0}[wanted]
        logits = np.empty((n_wanted, self.program.logits_stride // 4), np.float32)
        limit = self.max_rows
        if wanted == "all":
            limit = max(1, min(limit, _LOGITS_BUDGET // self.program.logits_stride))
        done = written = 0
        for chunk in _chunks(entries, limit):
            count = self._chunk(chunk, wanted, logits[written:], None if hidden is None else hidden[:, done:])
            if tokens is not None:
                tokens[written : written + count] = self.program.inputs["greedy"][:count]
            done += sum(len(ids) for _, ids, _ in chunk)
            written += count
        return logits[:, : self.plan.vocab]

    def _check(self, entries: list[tuple[Slot, np.ndarray]]) -> None:
        seen: set[int] = set()
        for slot, ids in entries:
            if slot.index < 0 or slot.index in seen:
                raise SlotError("a slot is closed, or appears twice in one forward")
            seen.add(slot.index)
            if ids.size == 0:
                raise TokenError("a forward needs at least one token a slot")
            if slot.length + len(ids) > self.context:
                raise ContextError(self.context, slot.length + len(ids), "the sequence")
            bad = ids[(ids < 0) | (ids >= self.plan.vocab)]
            if bad.size:
                raise TokenError(f"token id {int(bad[0])} is outside the vocabulary of {self.plan.vocab}")

    def _chunk(
        self, chunk: list[tuple[Slot, np.ndarray, bool]], wanted: str, logits: np.ndarray, hidden: np.ndarray | None
    ) -> int:
        """Run one chunk of at most max_rows rows; returns the number of rows that somebody wants."""
        inputs, rows, n_wanted = self.program.inputs, 0, 0
        runs: list[tuple[int, int]] = []
        wanted_runs: list[tuple[int, int]] = []
        for slot, ids, last in chunk:
            n, start = len(ids), slot.length
            self.cache.prepare(slot.index, start, start + n)
            inputs["tokens"][rows : rows + n] = ids
            inputs["positions"][rows : rows + n] = np.arange(start, start + n)
            inputs["slots"][rows : rows + n] = slot.index
            runs.append((rows, n))
            if wanted == "all":
                inputs["wanted"][n_wanted : n_wanted + n] = np.arange(rows, rows + n)
                wanted_runs.append((rows, n))
                n_wanted += n
            elif wanted in ("last", "greedy") and last:
                inputs["wanted"][n_wanted] = rows + n - 1
                wanted_runs.append((rows + n - 1, 1))
                n_wanted += 1
            rows += n
        self.program.reach(max(slot.length + len(ids) for slot, ids, _ in chunk))
        tiles = (self.program.set_tiles("att_tiles", runs), self.program.set_tiles("att_wanted", wanted_runs))
        with_logits, greedy = (0, n_wanted) if wanted == "greedy" else (n_wanted, 0)
        self._ctx["counts"][0] = (rows, n_wanted, with_logits, greedy, *tiles, 1)
        self.program.set_logits(int(logits.ctypes.data) if with_logits else 0)
        self._execute(rows, hidden)
        for slot, ids, _ in chunk:
            slot.length += len(ids)
            self.cache.trim(slot.index, slot.length)
        return n_wanted

    def _execute(self, rows: int, hidden: np.ndarray | None) -> None:
        """All steps at once, or layer by layer when hidden states or a residency hook are asked for."""
        steps = len(self.plan.steps)
        if hidden is None and self.before_layer is None:
            self._range(0, steps)
            return
        begin = 0
        for i, end in enumerate([*self.plan.layer_ends, steps]):
            if self.before_layer is not None:
                self.before_layer(i)
            self._range(begin, end)
            begin = end
            if hidden is not None and i <= self.plan.n_layers:
                hidden[i, :rows] = self.program.rows_of(self.plan.residual, rows, self.plan.hidden)
        if hidden is not None:
            hidden[-1, :rows] = self.program.rows_of(self.plan.final_norm, rows, self.plan.hidden)

    def _range(self, begin: int, end: int) -> None:
        self._ctx["step_begin"], self._ctx["step_end"] = begin, end
        self._forward(self._ctx.ctypes.data)

    def close(self) -> None:
        """Stop the worker threads. The bundle stays open; its owner closes it."""
        self._stop()

    def info(self) -> dict[str, Any]:
        """Facts for a banner: target, threads, context, KV precision and its bytes so far."""
        return {
            "target": self.target, "threads": self.threads, "context": self.context, "kv": self.kv,
            "kv_bytes": sum(p.allocated_bytes for p in self.cache.pools),
        }  # fmt: skip


def _stop_workers(workers: Workers, *_memory: object) -> None:
    """End the threads; the other arguments are what they use, kept alive until then."""
    workers.stop()


def _token_ids(ids: Sequence[int]) -> np.ndarray:
    """A flat array of whole numbers. Raises TokenError for anything else than a list of whole numbers that fit."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TokenError(f"token ids must be a flat list of whole numbers below 2^63, not {ids!r:.60}")
    return array


def _check_sizes(options: Options) -> None:
    """Raise UsageError for a number of slots, rows or threads that cannot be meant."""
    limits = {"slots": (options.slots, 1 << 16), "max_rows": (options.max_rows, 1 << 20),
              "threads": (1 if options.threads is None else options.threads, MAX_THREADS)}  # fmt: skip
    for name, (value, high) in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            raise UsageError(f"{name}: {value!r} is not a whole number between 1 and {high}")


def _context(plan: Plan, wanted: int | None) -> int:
    if wanted is None:
        return min(plan.max_context, DEFAULT_CONTEXT)
    if not 1 <= wanted <= plan.max_context:
        raise UsageError(f"context {wanted} is not between 1 and the model's maximum {plan.max_context}")
    return wanted


def _chunks(entries: list[tuple[Slot, np.ndarray]], limit: int) -> list[list[tuple[Slot, np.ndarray, bool]]]:
    """Cut the entries into forwards of at most `limit` rows; the flag marks the last piece of an entry."""
    chunks: list[list[tuple[Slot, np.ndarray, bool]]] = [[]]
    room = limit
    for slot, ids in entries:
        at = 0
        while at < len(ids):
            if room == 0:
                chunks.append([])
                room = limit
            n = min(room, len(ids) - at)
            chunks[-1].append((slot, ids[at : at + n], at + n == len(ids)))
            at += n
            room -= n
    return chunks
