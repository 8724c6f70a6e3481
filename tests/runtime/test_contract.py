"""The numerics contract: a row's logits are the same bytes whatever the threads, the batch, the chunks or the run.

Seen red with: a lone row of a matmul summing by multiply and add where a tile uses fma; no barriers between steps;
attention tiles that cover one row of eight; hidden states stored one layer late.
"""

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import goinfer
from goinfer.codegen.target import TARGETS
from goinfer.runtime.cpu import cpu_flags
from goinfer.runtime.kv_cache import SlotError

BETTER = [t.name for t in list(TARGETS.values())[1:] if t.arch == platform.machine() and set(t.needs) <= cpu_flags()]
"""Targets above the base one that this machine runs."""

CASES = [("llama", "plain", "f32"), ("llama", "plain", "int4"), ("qwen2", "plain", "int8int8"),
         ("gemma3_text", "plain", "int4"), ("gguf", "mixed", "int4"),
         *[("gguf", "mixed", "int4", t) for t in BETTER],
         *[("qwen2", "plain", "int8int8", t) for t in BETTER]]  # fmt: skip
LENGTH = 200


def ids_of(model: goinfer.Model, n: int = LENGTH, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, model.engine.vocab, n)]


@pytest.fixture(params=CASES, ids="-".join)
def bundle(request: pytest.FixtureRequest, tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle(*request.param)


def reference(bundle: Path) -> tuple[list[int], np.ndarray]:
    """Ids and logits of one thread and one forward."""
    with goinfer.load(bundle, threads=1) as model:
        ids = ids_of(model)
        logits = model.forward(ids)
    assert isinstance(logits, np.ndarray) and np.isfinite(logits).all()
    return ids, logits


def assert_same_bytes(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32
    differing = np.flatnonzero((got.view(np.uint32) != want.view(np.uint32)).any(axis=1))
    assert not differing.size, f"{differing.size} of {len(got)} positions differ, first {differing[:5]}"


def test_threads(bundle: Path) -> None:
    ids, want = reference(bundle)
    for threads in (2, 3, 4):
        with goinfer.load(bundle, threads=threads) as model:
            assert_same_bytes(model.forward(ids), want)


def test_repeated_runs(bundle: Path) -> None:
    ids, want = reference(bundle)
    with goinfer.load(bundle, threads=2) as model:
        for _ in range(10):
            assert_same_bytes(model.forward(ids), want)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_prompt_chunks(bundle: Path, chunk: int) -> None:
    ids, want = reference(bundle)
    with goinfer.load(bundle, threads=2) as model, model.engine.new_slot() as slot:
        parts = [
            model.engine.forward([(slot, ids[i : i + chunk])], wanted="all").copy() for i in range(0, len(ids), chunk)
        ]
    assert_same_bytes(np.concatenate(parts), want)


@pytest.mark.parametrize("max_rows", [1, 5, 64])
def test_rows_per_forward(bundle: Path, max_rows: int) -> None:
    ids, want = reference(bundle)
    with goinfer.load(bundle, threads=2, max_rows=max_rows) as model:
        assert_same_bytes(model.forward(ids), want)


def test_batch_mates(bundle: Path) -> None:
    """Eight sequences of different lengths in one forward, then eight decode rows, each against its solo run."""
    with goinfer.load(bundle, threads=2, slots=9) as model:
        prompts = [ids_of(model, n, seed=n) for n in (1, 2, 3, 17, 63, 64, 65, 130)]
        solo = []
        for ids in prompts:
            with model.engine.new_slot() as slot:
                first = model.engine.forward([(slot, ids)]).copy()
                solo.append(np.concatenate([first, model.engine.forward([(slot, ids[:1])]).copy()]))
        slots = [model.engine.new_slot() for _ in prompts]
        first = model.engine.forward(list(zip(slots, prompts, strict=True))).copy()
        second = model.engine.forward([(s, ids[:1]) for s, ids in zip(slots, prompts, strict=True)]).copy()
    assert_same_bytes(np.stack([first, second], axis=1).reshape(-1, first.shape[1]), np.concatenate(solo))


@pytest.mark.parametrize("max_rows", [7, 512])
def test_last_rows_are_those_of_all_rows(bundle: Path, max_rows: int) -> None:
    """Rows whose logits nobody wants end early; the others are the same bytes, in forwards with any mix of them.

    Seen red with: what was attended not moved along with the residual stream.
    """
    with goinfer.load(bundle, threads=2, slots=4, max_rows=max_rows) as model:
        prompts = [ids_of(model, n, seed=n) for n in (1, 40, 3, 70)]
        want = np.stack([np.asarray(model.forward(ids))[-1] for ids in prompts])
        slots = [model.engine.new_slot() for _ in prompts]
        model.engine.forward([(slot, ids[:-1]) for slot, ids in zip(slots, prompts, strict=True) if ids[:-1]], "none")
        last = model.engine.forward([(slot, ids[-1:]) for slot, ids in zip(slots, prompts, strict=True)])
        assert_same_bytes(last, want)
        for slot in slots:
            slot.truncate(0)
        assert_same_bytes(model.engine.forward(list(zip(slots, prompts, strict=True))), want)


@pytest.mark.parametrize("max_rows", [7, 512])
def test_greedy_tokens_are_those_of_the_logits(bundle: Path, max_rows: int) -> None:
    """Of several sequences together, with and without a limit on the ids."""
    with goinfer.load(bundle, threads=2, slots=4, max_rows=max_rows) as model:
        prompts = [ids_of(model, n, seed=n) for n in (1, 30, 9)]
        for choices in (model.engine.vocab, model.engine.vocab // 2):
            slots = [model.engine.new_slot() for _ in prompts]
            found = model.engine.greedy(list(zip(slots, prompts, strict=True)), choices)
            want = [int(np.asarray(model.forward(ids))[-1, :choices].argmax()) for ids in prompts]
            assert found.dtype == np.int32 and found.tolist() == want
            for slot in slots:
                slot.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("max_rows", [1, 2, 512])
def test_long_lone_rows(bundle: Path, threads: int, max_rows: int) -> None:
    """Two contexts of two blocks, decoded together and alone: blocks go to all threads where there is room for
    their partials (max_rows blocks: none, those of one row, both), and each token is what one forward gives it.

    Seen red with: the second row's partials over the first's; tiles for all blocks but the last.
    """
    with goinfer.load(bundle, threads=1) as model:
        ids = ids_of(model, 510)
        want = [model.forward(ids), model.forward(ids[:410])]
    with goinfer.load(bundle, threads=threads, max_rows=max_rows, slots=2) as model:
        slots, lengths = [model.engine.new_slot() for _ in range(2)], (500, 400)
        for slot, n in zip(slots, lengths, strict=True):
            model.engine.forward([(slot, ids[:n])], wanted="none")
        for step in range(5):
            batch = [(slot, [ids[n + step]]) for slot, n in zip(slots, lengths, strict=True)]
            got = model.engine.forward(batch, wanted="all").copy()
            assert_same_bytes(got, np.stack([w[n + step] for w, n in zip(want, lengths, strict=True)]))
        for step in range(5, 10):
            for slot, n, w in zip(slots, lengths, want, strict=True):
                got = model.engine.forward([(slot, [ids[n + step]])], wanted="all").copy()
                assert_same_bytes(got, w[n + step : n + step + 1])


@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
def test_kv_precisions_keep_the_contract(tiny_bundle: Callable[..., Path], kv: str) -> None:
    bundle = tiny_bundle("llama", "plain", "int4")
    with goinfer.load(bundle, threads=1, kv=kv) as model:
        ids = ids_of(model)
        want = model.forward(ids)
    with goinfer.load(bundle, threads=2, kv=kv) as model, model.engine.new_slot() as slot:
        got = np.concatenate([model.engine.forward([(slot, [i])], wanted="all").copy() for i in ids])
    assert_same_bytes(got, want)


def test_both_sides_of_a_fork_continue_like_fresh_runs(bundle: Path) -> None:
    """The original writes first and so copies the shared page; the twin keeps it. Seen red without the copy."""
    with goinfer.load(bundle, threads=2) as model, model.engine.new_slot() as slot:
        ids = ids_of(model, 100)
        other = ids[:30][::-1]
        model.engine.forward([(slot, ids[:70])])
        with slot.fork() as twin:
            original = model.engine.forward([(slot, other)], wanted="all").copy()
            forked = model.engine.forward([(twin, ids[70:])], wanted="all").copy()
        assert_same_bytes(original, model.forward(ids[:70] + other)[70:])
        assert_same_bytes(forked, model.forward(ids)[70:])


def test_truncate_goes_back_or_says_why_not(bundle: Path) -> None:
    with goinfer.load(bundle, threads=2) as model, model.engine.new_slot() as slot:
        ids = ids_of(model, 100)
        model.engine.forward([(slot, ids[:90])])
        windowed = any(pool.group.window for pool in model.engine.cache.pools)
        if windowed:
            with pytest.raises(SlotError, match="window of 8 has moved past"):
                slot.truncate(70)
        back = 80 if windowed else 70
        slot.truncate(back)
        got = model.engine.forward([(slot, ids[back:])], wanted="all").copy()
        assert_same_bytes(got, model.forward(ids)[back:])


def test_hidden_states_agree_with_the_plain_forward(bundle: Path) -> None:
    ids, want = reference(bundle)
    with goinfer.load(bundle, threads=2) as model:
        logits, hidden = model.forward(ids, hidden_states=True)
        assert_same_bytes(logits, want)
        assert hidden.shape == (model.engine.plan.n_layers + 2, len(ids), model.engine.plan.hidden)
        assert np.isfinite(hidden).all() and np.abs(np.diff(hidden, axis=0)).max(axis=(1, 2)).min() > 0
