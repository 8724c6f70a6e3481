"""The native step loop over steps that are Python functions, so that threads can be held up where it hurts.

Seen red with: a barrier that waits for threads instead of tiles (the first test hangs); claims that do not compare the
generation (a straggler takes tiles of the next forward); counters left at their generation when a forward ends, and
compared from above only (a worker that wakes late claims tiles by the records of the next forward); a wait that does
not look at the generation (a straggler never leaves, its test hangs).
"""

import ctypes
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from goinfer.bundle_format import kernel_abi as abi
from tests.conftest import native_target
from tests.kernels.harness import _function, image_of

pytestmark = pytest.mark.timeout(60)

FIXED = abi.DOMAINS.index("fixed")
TILES = 20
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
NUMBER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
PLAIN = ctypes.CFUNCTYPE(ctypes.c_int32)
PATIENCE = 20.0


class Machine:
    """Three steps with barriers, two threads. `work(thread, step, start, stop)` runs in every claimed run of tiles."""

    def __init__(self, work: Callable[[int, int, int, int], None] = lambda *_: None) -> None:
        self.log: list[tuple[int, int, int, int]] = []
        self.entered, self.yielded = threading.Semaphore(0), threading.Event()
        self.rest = threading.Semaphore(0)
        self.on_yield: Callable[[], None] = lambda: None
        self.wake = False
        """Whether a forward wakes the worker; otherwise the test decides when it wakes."""
        self._keep: list[Any] = []
        self.steps, self.ctx = np.zeros(3, abi.STEP), np.zeros(1, abi.CTX)
        self.counters = np.zeros(3, np.int64)
        for i in range(3):
            self.steps[i]["fn"] = self._address(KERNEL(self._step(work, i)))
        self.steps["units"], self.steps["row_tile"], self.steps["domain"], self.steps["barrier"] = TILES, 1, FIXED, 1
        self.ctx["counts"][0, FIXED] = 1
        self.ctx["steps"], self.ctx["counters"] = self.steps.ctypes.data, self.counters.ctypes.data
        self.ctx["step_end"], self.ctx["threads"], self.ctx["spin_limit"] = 3, 2, 4
        self.ctx["sem_wait"] = self._address(NUMBER(self._sleep))
        self.ctx["sem_post"] = self._address(NUMBER(self._post))
        self.ctx["sched_yield"] = self._address(PLAIN(self._yield))
        image = image_of("driver", "{}", native_target())
        self._forward = _function(image, abi.FORWARD_SYMBOL, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
        self._worker = _function(image, abi.WORKER_SYMBOL, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32))
        self.worker = threading.Thread(target=self._worker, args=(self.ctx.ctypes.data, 1), daemon=True)

    def _address(self, function: Any) -> int:
        self._keep.append(function)
        return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

    def _step(self, work: Callable[[int, int, int, int], None], step: int) -> Callable[..., None]:
        def run(_step: int, _ctx: int, thread: int, start: int, stop: int) -> None:
            work(thread, step, start, stop)
            self.log.append((thread, step, start, stop))

        return run

    def _sleep(self, _: int) -> int:
        self.entered.release()
        self.rest.acquire()
        return 0

    def _post(self, _: int) -> int:
        if self.wake:
            self.rest.release()
        return 0

    def _yield(self) -> int:
        self.on_yield()
        return 0

    def forward(self) -> list[tuple[int, int, int, int]]:
        """One forward by thread 0; what was logged meanwhile."""
        first = len(self.log)
        self._forward(self.ctx.ctypes.data)
        return self.log[first:]

    def begin(self) -> None:
        """Start the worker and wait until it sleeps."""
        self.worker.start()
        assert self.entered.acquire(timeout=PATIENCE)

    def end(self) -> None:
        """The worker must come back from wherever it is, and end."""
        self.ctx["quit"] = 1
        self.rest.release()
        self.worker.join(PATIENCE)
        assert not self.worker.is_alive()


def assert_once(log: list[tuple[int, int, int, int]]) -> None:
    """Every tile of every step exactly once, and no step before the one before it was done."""
    for step in range(3):
        runs = sorted((start, stop) for _, s, start, stop in log if s == step)
        assert [tile for start, stop in runs for tile in range(start, stop)] == list(range(TILES)), runs
    order = [step for _, step, _, _ in log]
    assert order == sorted(order)


def test_a_worker_that_never_wakes_stalls_nobody() -> None:
    machine = Machine()
    for _ in range(3):
        log = machine.forward()
        assert_once(log)
        assert {thread for thread, *_ in log} == {0}


def test_a_forward_waits_for_a_tile_that_a_thread_holds() -> None:
    """The worker stops inside a tile: thread 0 does all others, and goes on only when that one is done."""
    held, go = threading.Event(), threading.Event()

    def work(thread: int, step: int, start: int, stop: int) -> None:
        if thread == 1 and step == 0 and not held.is_set():
            held.set()
            assert go.wait(PATIENCE)
        if thread == 0 and step == 0:
            assert held.wait(PATIENCE)
        if step > 0:
            assert go.is_set()

    machine = Machine(work)
    machine.begin()
    machine.on_yield = lambda: go.set() if held.is_set() else None  # thread 0 has begun to wait for the tile
    machine.wake = True
    log = machine.forward()
    assert_once(log)
    assert {thread for thread, step, *_ in log if step == 0} == {0, 1}
    assert machine.entered.acquire(timeout=PATIENCE)
    machine.end()


def test_a_straggler_leaves_the_next_forward_alone() -> None:
    """The worker is held up before a claim, in a wait, or asleep, while whole forwards pass by."""
    machine = Machine()
    machine.begin()
    stuck, free = threading.Event(), threading.Event()

    def hold_the_worker() -> None:
        if threading.current_thread() is machine.worker:
            stuck.set()
            assert free.wait(PATIENCE)

    begun = threading.Event()

    def work(thread: int, step: int, start: int, stop: int) -> None:
        if step == 0 and thread == 1:
            assert begun.wait(PATIENCE)  # or it could take all tiles before thread 0 has one
        if step == 0 and thread == 0 and not stuck.is_set():
            begun.set()
            assert stuck.wait(PATIENCE)  # so the worker has nothing left to do and waits for this tile

    machine.steps["fn"][0] = machine._address(KERNEL(machine._step(work, 0)))
    machine.on_yield = hold_the_worker
    machine.wake = True
    assert_once(machine.forward())
    assert stuck.is_set()
    machine.wake = False
    for _ in range(2):
        log = machine.forward()
        assert_once(log)
        assert {thread for thread, *_ in log} == {0}
    before = len(machine.log)
    free.set()
    assert machine.entered.acquire(timeout=PATIENCE), "the straggler did not leave"
    assert len(machine.log) == before, "the straggler took tiles"
    machine.end()


def test_a_claim_of_an_old_generation_fails() -> None:
    """The worker is stopped inside its tile of one forward; its counters are moved on as the next forward would."""
    machine: Machine

    def work(thread: int, step: int, start: int, stop: int) -> None:
        if thread == 1:
            machine.counters += 1 << 32
            machine.ctx["generation"] += 1 << 32
            machine.ctx["done"] = 0

    machine = Machine(work)
    machine.begin()
    machine.ctx["generation"] = 1 << 32
    machine.counters[:] = 1 << 32
    machine.rest.release()
    assert machine.entered.acquire(timeout=PATIENCE), "the straggler did not leave"
    assert [entry[:2] for entry in machine.log] == [(1, 0)], "the straggler claimed tiles of the next generation"
    machine.end()


def test_a_worker_that_wakes_between_forwards_does_nothing() -> None:
    """The caller has written the records of the next, larger forward, of other steps; that one has not begun."""
    machine = Machine()
    machine.begin()
    machine.ctx["step_end"] = 2
    machine.forward()
    for begin, end, count in ((0, 2, 3), (0, 3, 3), (2, 3, 1)):
        machine.ctx["step_begin"], machine.ctx["step_end"], machine.ctx["counts"][0, FIXED] = begin, end, count
        before = len(machine.log)
        machine.rest.release()
        assert machine.entered.acquire(timeout=PATIENCE)
        assert len(machine.log) == before, machine.log[before:]
    log = machine.forward()
    assert sorted(entry[2:] for entry in log) == sorted({entry[2:] for entry in log})
    assert sum(stop - start for _, _, start, stop in log) == TILES
    machine.end()


def test_many_forwards_with_a_worker_that_comes_and_goes() -> None:
    """The worker is woken at random moments, for this forward or for none."""
    machine = Machine()
    machine.begin()
    machine.forward()  # before the first one nothing wakes a worker
    rng = np.random.default_rng(0)
    for kind in itertools.chain([1, 1], rng.integers(0, 3, 200)):
        for _ in range(kind):
            machine.rest.release()
        first = len(machine.log)
        machine.forward()
        assert_once(machine.log[first:])
    machine.end()
