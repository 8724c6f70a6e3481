"""One model, many callers: threads that share it, slots closed at any moment, forks.

Seen red with: logits in a buffer of the engine's that the next forward overwrites (a sampler in another thread then
reads another caller's logits); slots opened, forked and closed without the engine's lock; a fork that runs with the
parent's records.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import goinfer
from goinfer.runtime.errors import ForkedError
from goinfer.runtime.kv_cache import SlotError

Bundles = Callable[[str, str, str], Path]
CALLERS = 6


@pytest.fixture
def model(tiny_bundle: Bundles):
    with goinfer.load(tiny_bundle("llama", "plain", "int4"), threads=2, context=256, slots=CALLERS) as opened:
        yield opened


def greedy(model: goinfer.Model, prompt: list[int]) -> list[int]:
    return [piece.id for piece in model.generate(prompt, max_new_tokens=24, temperature=0, ignore_eos=True)]


def test_logits_belong_to_the_caller(model: goinfer.Model) -> None:
    first, second = model.engine.new_slot(), model.engine.new_slot()
    mine = model.engine.forward([(first, [5])])
    kept = mine.copy()
    model.engine.forward([(second, [9])])
    assert mine.tobytes() == kept.tobytes()


def test_threads_that_generate_get_their_own_tokens(model: goinfer.Model) -> None:
    prompts = [[int(i) for i in np.random.default_rng(seed).integers(3, 250, 5 + seed)] for seed in range(CALLERS)]
    alone = [greedy(model, prompt) for prompt in prompts]
    assert len({tuple(ids) for ids in alone}) == CALLERS, "the prompts must have answers of their own"
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(5):
            assert list(pool.map(lambda prompt: greedy(model, prompt), prompts)) == alone


def test_slots_opened_forked_and_closed_by_many_threads(model: goinfer.Model) -> None:
    """Every thread uses one slot and one fork at a time; at the end all slots and pages are free."""
    model.engine.new_slot().close()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(30):
                try:
                    with model.engine.new_slot() as slot:
                        model.engine.forward([(slot, [int(i) for i in rng.integers(3, 250, 70)])], wanted="none")
                        with slot.fork() as fork:
                            fork.truncate(int(rng.integers(1, 70)))
                            model.engine.forward([(fork, [7])])
                except SlotError as error:
                    assert "in use" in str(error)  # more forks than slots at this moment
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    cache = model.engine.cache
    assert sorted(cache._free) == list(range(CALLERS))
    assert all(not pool._refs and not pool.table.any() for pool in cache.pools)


def test_a_slot_closed_inside_an_operation_is_freed_after_it(model: goinfer.Model) -> None:
    """As the garbage collector does it: in the thread that holds the engine, which must not wait for itself."""
    slot = model.engine.new_slot()
    with model.engine.exclusive() as cache:
        slot.close()
        assert slot.index == -1 and len(cache._free) == CALLERS - 1
    assert len(model.engine.cache._free) == CALLERS


def test_a_closed_slot_reaches_no_other(model: goinfer.Model) -> None:
    """Seen red: index -1 is the last slot, so a fork of a closed slot shared that one's keys and values."""
    slots = [model.engine.new_slot() for _ in range(CALLERS)]
    for slot in slots:
        model.engine.forward([(slot, [5, 6, 7])])
    closed = slots[0]
    closed.close()
    tables = [pool.table.copy() for pool in model.engine.cache.pools]
    for use in (closed.fork, lambda: closed.truncate(1)):
        with pytest.raises(SlotError, match="the slot is closed"):
            use()
    assert all(np.array_equal(a, pool.table) for a, pool in zip(tables, model.engine.cache.pools, strict=True))
    for slot in slots:
        slot.close()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_is_refused(model: goinfer.Model) -> None:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            model.forward([5, 6])
        except ForkedError as error:
            os._exit(0 if "load it again" in str(error) else 3)
        except BaseException:
            os._exit(4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.isfinite(model.forward([5, 6])).all(), "the parent goes on"
