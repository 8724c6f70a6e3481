"""Many requests, one engine: which rows go into the next forward. Bookkeeping only, no tensor code.

Life of a job: submitted (any thread) -> waiting -> admitted (gets a slot) -> its prompt is fed in chunks, between the
decode rows of the others -> one row a step -> finished, failed or cancelled (slot given back). All but the submission
happens in `step`, which one thread calls.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from goinfer.bundle_format.errors import GoinferError
from goinfer.runtime.generate import Generation, Piece
from goinfer.runtime.interfaces import Engine, Slot

log = logging.getLogger("goinfer.serve")

Sink = Callable[[list[Piece] | Exception], None]
"""Receives a job's pieces, or the error that ended it; called in the scheduler's thread, must not block."""


class BusyError(GoinferError):
    """More requests wait than the server is willing to keep."""


class StoppedError(GoinferError):
    """The server is shutting down."""


@dataclass(eq=False)
class Job:
    """One request inside the scheduler. Only `cancelled` may be set from outside, through Scheduler.cancel."""

    generation: Generation
    sink: Sink
    slot: Slot | None = None
    fed: int = 0
    cancelled: bool = False

    @property
    def prefilling(self) -> bool:
        """Prompt tokens are still to be fed."""
        return self.fed < len(self.generation.prompt_ids)

    def next_ids(self, room: int) -> list[int]:
        """At most `room` ids this job wants to feed next."""
        if self.prefilling:
            return self.generation.prompt_ids[self.fed : self.fed + room]
        return self.generation.ids[-1:]


class Scheduler:
    """Steps up to `max_active` jobs as one batch; at most `max_waiting` more are kept.

    While some jobs decode, a step feeds at most `prefill_chunk` prompt tokens, so that a long prompt delays
    the others by one chunk at a time. A cancelled job gives its slot back before the next forward.
    """

    def __init__(self, engine: Engine, max_active: int, max_waiting: int = 64, prefill_chunk: int = 128) -> None:
        self._engine = engine
        self._max_active = max_active
        self._max_waiting = max_waiting
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[Job] = deque()
        self._active: deque[Job] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def load(self) -> tuple[int, int]:
        """Jobs that hold a slot, and jobs that wait for one."""
        return len(self._active), len(self._waiting)

    def submit(self, generation: Generation, sink: Sink) -> Job:
        """Queue a request; raises BusyError when too many wait already."""
        job = Job(generation, sink)
        with self._wake:
            if self._stopping:
                raise StoppedError("the server is shutting down")
            if len(self._waiting) >= self._max_waiting:
                raise BusyError(f"{len(self._waiting)} requests are waiting already: try again later")
            self._waiting.append(job)
            self._wake.notify()
        return job

    def cancel(self, job: Job) -> None:
        """The client is gone: nothing more is sent to the sink. Harmless for a job that has ended."""
        job.cancelled = True
        with self._wake:
            self._wake.notify()

    def start(self) -> None:
        """Step in a thread of its own until `stop`."""
        self._thread = threading.Thread(target=self._run, name="goinfer-scheduler", daemon=True)
        self._thread.start()

    def request_stop(self) -> None:
        """Fail all jobs before the next forward; takes no lock, so a signal handler may call it."""
        self._stopping = True

    def stop(self) -> None:
        """As request_stop, and wait for the thread."""
        self.request_stop()
        with self._wake:
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def step(self) -> bool:
        """Clean up, admit, and run one forward; False when there was nothing to run."""
        self._drop_cancelled()
        self._admit()
        batch = self._next_batch()
        if not batch:
            return False
        try:
            outcome = self._forward(batch)
        except Exception as error:
            for job, _ in batch:
                self._fail(job, error)
            return True
        for row, (job, ids) in enumerate(batch):
            if job.prefilling:
                job.fed += len(ids)
            if not job.prefilling:
                self._advance(job, outcome[row])
        return True

    def _forward(self, batch: list[tuple[Job, list[int]]]) -> np.ndarray:
        """Logits of each job's last row, [jobs, vocabulary]; its likeliest tokens, [jobs], if all want just these."""
        rows = [(job.slot, ids) for job, ids in batch]
        if all(job.generation.greedy for job, _ in batch):
            return self._engine.greedy(rows, batch[0][0].generation.sampler.vocab_size)
        return self._engine.forward(rows, wanted="last")

    def _run(self) -> None:
        while not self._stopping:
            try:
                idle = not self.step()
            except Exception as error:  # never leave clients waiting for a thread that is gone
                idle = False
                for job in list(self._active):
                    self._fail(job, error)
            if idle:
                with self._wake:
                    self._wake.wait_for(self._has_news, timeout=1.0)
        with self._wake:
            left = [*self._active, *self._waiting]
            self._waiting.clear()
        for job in left:
            self._fail(job, StoppedError("the server is shutting down"))

    def _has_news(self) -> bool:
        return bool(self._stopping or self._waiting or self._active)

    def _drop_cancelled(self) -> None:
        with self._wake:
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
        for job in [job for job in self._active if job.cancelled]:
            self._retire(job)

    def _admit(self) -> None:
        while len(self._active) < self._max_active:
            with self._wake:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            self._active.append(job)
            self._advance(job, None)
            if job.generation.finish_reason is None:
                try:
                    job.slot = self._engine.new_slot()
                except Exception as error:
                    self._fail(job, error)

    def _next_batch(self) -> list[tuple[Job, list[int]]]:
        """Every decoding job's row first, then prompt chunks in order of arrival, within max_rows."""
        decoding = [job for job in self._active if not job.prefilling]
        prefilling = [job for job in self._active if job.prefilling]
        # a prompt gets a row at least: it must not wait until others have finished
        served = decoding[: self._engine.max_rows - bool(prefilling)]
        batch = [(job, job.next_ids(1)) for job in served]
        room = self._engine.max_rows - len(batch)
        if decoding:
            room = min(room, self._prefill_chunk)
        for job in prefilling:
            if room:
                batch.append((job, job.next_ids(room)))
                room -= len(batch[-1][1])
        if len(served) < len(decoding):
            self._active.rotate(-len(served))  # more jobs than rows: each gets its turn
        return batch

    def _advance(self, job: Job, row: np.ndarray | None) -> None:
        """Send the pieces of one more row (None: of the beginning): its logits, or its likeliest token.

        An error there is this job's alone.
        """
        try:
            if row is None:
                pieces = job.generation.begin()
            else:
                pieces = job.generation.push(row) if row.ndim else job.generation.push_token(int(row))
            if pieces and not job.cancelled:
                job.sink(pieces)
        except Exception as error:
            self._fail(job, error)
            return
        if job.generation.finish_reason is not None:
            self._retire(job)

    def _fail(self, job: Job, error: Exception) -> None:
        if not isinstance(error, GoinferError):
            log.error("internal error: %s: %s", type(error).__name__, error)
        self._retire(job)
        if not job.cancelled:
            try:
                job.sink(error)
            except RuntimeError:
                log.info("a client left before its error could be sent")

    def _retire(self, job: Job) -> None:
        if job in self._active:
            self._active.remove(job)
        if job.slot is not None:
            job.slot.close()
            job.slot = None
