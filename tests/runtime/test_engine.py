"""The engine's edges: limits, bad ids, slots, targets, KV pages that are shared, released and grown.

Seen red with: a released page left in the table; no context check before the first chunk is written.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import goinfer
from goinfer.bundle_format.errors import UsageError
from goinfer.runtime import cpu
from goinfer.runtime.cpu import NoTargetError, choose_target
from goinfer.runtime.engine import TokenError
from goinfer.runtime.errors import ContextError
from goinfer.runtime.kv_cache import SlotError


@pytest.fixture
def model(tiny_bundle: Callable[..., Path]) -> goinfer.Model:
    with goinfer.load(tiny_bundle("llama", "plain", "int4"), threads=2, context=130, slots=2, max_rows=48) as opened:
        yield opened


def test_a_request_over_the_context_states_both_numbers_and_writes_nothing(model: goinfer.Model) -> None:
    engine = model.engine
    with engine.new_slot() as slot:
        engine.forward([(slot, [1, 2, 3])])
        with pytest.raises(ContextError, match="needs 131 tokens, the limit is 130") as caught:
            engine.forward([(slot, [5] * 128)])
        assert (caught.value.limit, caught.value.request, slot.length) == (130, 131, 3)
        engine.forward([(slot, [5] * 127)])
        assert slot.length == 130


@pytest.mark.parametrize(("bad", "named"), [(-1, "-1"), (10**6, "1000000"), (2**40, "1099511627776")])
def test_a_token_outside_the_vocabulary_is_named(model: goinfer.Model, bad: int, named: str) -> None:
    with model.engine.new_slot() as slot, pytest.raises(TokenError, match=f"token id {named} is outside"):
        model.engine.forward([(slot, [1, bad])])


@pytest.mark.parametrize("bad", [[1.5], [[1, 2], [3, 4]], [10**30], ["a"], [1, 2**63]])
def test_ids_that_are_no_flat_list_of_whole_numbers_are_refused(model: goinfer.Model, bad: list[object]) -> None:
    with model.engine.new_slot() as slot, pytest.raises(TokenError, match="flat list of whole numbers"):
        model.engine.forward([(slot, bad)])


def test_slots_run_out_close_and_come_back(model: goinfer.Model) -> None:
    a, b = model.engine.new_slot(), model.engine.new_slot()
    with pytest.raises(SlotError, match="all 2 slots are in use"):
        model.engine.new_slot()
    model.engine.forward([(a, [1] * 70), (b, [2] * 3)])
    before = sum(p.allocated_bytes for p in model.engine.cache.pools)
    for _ in range(3):
        a.close()
        a.close()
        a = model.engine.new_slot()
        model.engine.forward([(a, [1] * 70)])
    assert sum(p.allocated_bytes for p in model.engine.cache.pools) == before, "pages of a closed slot are used again"
    with pytest.raises(SlotError, match="twice in one forward"):
        model.engine.forward([(a, [1]), (a, [2])])
    a.close()
    with pytest.raises(SlotError, match="closed"):
        model.engine.forward([(a, [1])])


def test_an_empty_forward_is_refused(model: goinfer.Model) -> None:
    with model.engine.new_slot() as slot, pytest.raises(TokenError, match="at least one token"):
        model.engine.forward([(slot, [])])


def test_a_slot_reused_after_another_gives_the_bytes_of_a_fresh_one(model: goinfer.Model) -> None:
    """Pages come back with old contents: nothing of them may show."""
    ids = [int(i) for i in np.random.default_rng(3).integers(0, model.engine.vocab, 100)]
    fresh = model.forward(ids)
    with model.engine.new_slot() as slot:
        model.engine.forward([(slot, ids[::-1])])
    again = model.forward(ids)
    assert again.tobytes() == fresh.tobytes()


def test_a_fork_that_writes_copies_the_page(model: goinfer.Model) -> None:
    engine = model.engine
    with engine.new_slot() as slot:
        engine.forward([(slot, list(range(1, 71)))])
        with slot.fork() as twin:
            pool = engine.cache.pools[0]
            assert (pool.table[slot.index, :2] == pool.table[twin.index, :2]).all()
            engine.forward([(twin, [9])])
            shared = pool.table[slot.index, :2] == pool.table[twin.index, :2]
            assert shared.tolist() == [True, False]


def test_windowed_layers_give_pages_back(tiny_bundle: Callable[..., Path]) -> None:
    with goinfer.load(tiny_bundle("gemma3_text", "plain", "int4"), threads=1, slots=1) as opened:
        engine = opened.engine
        windowed = next(p for p in engine.cache.pools if p.group.window == 8)
        full = next(p for p in engine.cache.pools if p.group.window == 0)
        with engine.new_slot() as slot:
            engine.forward([(slot, [7] * 200)])
            assert np.flatnonzero(windowed.table[slot.index]).tolist() == [3]
            assert np.flatnonzero(full.table[slot.index]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "match"),
    [({"kv": "f8"}, "kv 'f8' is unknown"), ({"context": 10**9}, "context 1000000000 is not between"),
     ({"threads": 1000}, "threads: 1000"), ({"threads": 0}, "threads: 0"), ({"threads": "2"}, "threads: '2'"),
     ({"slots": 0}, "slots: 0"), ({"max_rows": 0}, "max_rows: 0"), ({"max_rows": 2.5}, "max_rows: 2.5"),
     ({"target": "vax"}, "target 'vax' is not in the bundle; it has:")],
)  # fmt: skip
def test_options_are_checked(tiny_bundle: Callable[..., Path], options: dict[str, object], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        goinfer.load(tiny_bundle("llama", "plain", "int4"), **options)


TARGETS = {
    "low": {"arch": "x86_64", "needs": ["avx2"], "rank": 10},
    "high": {"arch": "x86_64", "needs": ["avx2", "avx512f"], "rank": 30},
    "arm": {"arch": "aarch64", "needs": ["asimd"], "rank": 10},
}


def machine(monkeypatch: pytest.MonkeyPatch, arch: str, *flags: str) -> None:
    monkeypatch.delenv("GOINFER_TARGET", raising=False)
    monkeypatch.setattr(cpu.platform, "machine", lambda: arch)
    monkeypatch.setattr(cpu, "cpu_flags", lambda: frozenset(flags))


def test_the_best_usable_target_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "x86_64", "avx2", "avx512f")
    assert choose_target(TARGETS) == "high" and choose_target(TARGETS, "low") == "low"
    machine(monkeypatch, "x86_64", "avx2")
    assert choose_target(TARGETS) == "low"
    machine(monkeypatch, "aarch64", "asimd")
    assert choose_target(TARGETS) == "arm"


def test_no_usable_target_lists_what_the_bundle_has_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "x86_64", "sse4_2")
    with pytest.raises(NoTargetError, match=r"bundle has low, high, arm; this machine is x86_64 \(low lacks avx2"):
        choose_target(TARGETS)
    machine(monkeypatch, "riscv64")
    with pytest.raises(NoTargetError, match="this machine is riscv64"):
        choose_target(TARGETS)
    machine(monkeypatch, "x86_64", "avx2")
    with pytest.raises(NoTargetError, match=r"'high' \(--target or GOINFER_TARGET\) .*lacks avx512f; these can: low"):
        choose_target(TARGETS, "high")
