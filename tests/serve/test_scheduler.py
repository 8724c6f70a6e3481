"""Scheduler bookkeeping, stepped by hand: what shares a forward, fairness, cancelling, failures."""

import pytest

from goinfer.bundle_format.errors import GoinferError
from goinfer.runtime.generate import Generation, Piece
from goinfer.runtime.sampler import SamplingParams
from goinfer.serve.scheduler import BusyError, Job, Scheduler, StoppedError
from tests.runtime_text.text_fakes import FakeEngine, vocabulary


class Client:
    """Submits one prompt and keeps what comes back."""

    def __init__(self, scheduler: Scheduler, prompt: list[int], **params: object) -> None:
        self.pieces: list[Piece] = []
        self.error: Exception | None = None
        settings = SamplingParams(**{"max_new_tokens": 4, "ignore_eos": True, **params})
        self.job: Job = scheduler.submit(Generation(prompt, settings, vocabulary(), 128), self._take)

    def _take(self, found: list[Piece] | Exception) -> None:
        if isinstance(found, Exception):
            self.error = found
        else:
            self.pieces += found

    @property
    def ids(self) -> list[int]:
        return [piece.id for piece in self.pieces]

    @property
    def done(self) -> bool:
        return bool(self.pieces) and self.pieces[-1].finish_reason is not None


def drain(scheduler: Scheduler) -> int:
    steps = 0
    while scheduler.step():
        steps += 1
        assert steps < 1000
    return steps


def alone(prompt: list[int], **params: object) -> list[int]:
    scheduler = Scheduler(FakeEngine(), max_active=1)
    client = Client(scheduler, prompt, **params)
    drain(scheduler)
    return client.ids


def test_one_job_feeds_its_prompt_and_decodes() -> None:
    engine = FakeEngine(max_rows=4)
    scheduler = Scheduler(engine, max_active=2)
    client = Client(scheduler, [1] * 6)
    assert drain(scheduler) == 5
    assert engine.batches == [[4], [2], [1], [1], [1]]
    assert client.done and len(client.ids) == 4 and engine.open_slots == 0


def test_jobs_share_a_forward_and_get_the_answers_they_get_alone() -> None:
    engine = FakeEngine(max_rows=16)
    scheduler = Scheduler(engine, max_active=4)
    prompts = [[i, i + 1, i + 2] for i in range(7)]
    clients = [Client(scheduler, p, temperature=0.9, seed=i) for i, p in enumerate(prompts)]
    drain(scheduler)
    assert engine.batches[0] == [3, 3, 3, 3] and engine.batches[1] == [1, 1, 1, 1]
    for i, client in enumerate(clients):
        assert client.ids == alone(prompts[i], temperature=0.9, seed=i)
    assert engine.open_slots == 0


def test_a_long_prompt_delays_others_by_one_small_chunk_at_a_time() -> None:
    engine = FakeEngine(max_rows=16)
    scheduler = Scheduler(engine, max_active=4, prefill_chunk=2)
    first = Client(scheduler, [1, 2, 3], max_new_tokens=6)
    scheduler.step()
    second = Client(scheduler, [9] * 7)
    drain(scheduler)
    assert engine.batches[:6] == [[3], [1, 2], [1, 2], [1, 2], [1, 1], [1, 1]]
    assert first.done and second.ids == alone([9] * 7)


def test_more_jobs_than_rows_take_turns() -> None:
    engine = FakeEngine(max_rows=2)
    scheduler = Scheduler(engine, max_active=4)
    clients = [Client(scheduler, [i], max_new_tokens=8) for i in range(4)]
    for _ in range(10):
        scheduler.step()
    progress = [len(client.pieces) for client in clients]
    assert min(progress) >= 3 and max(progress) <= 7, progress
    drain(scheduler)
    assert all(client.ids == alone([i], max_new_tokens=8) for i, client in enumerate(clients))


def test_waiting_jobs_are_admitted_in_order_as_slots_come_free() -> None:
    engine = FakeEngine()
    scheduler = Scheduler(engine, max_active=1)
    clients = [Client(scheduler, [i]) for i in range(3)]
    assert scheduler.load == (0, 3)
    scheduler.step()
    assert scheduler.load == (1, 2) and engine.open_slots == 1
    drain(scheduler)
    assert all(client.done for client in clients)


def test_cancelled_while_decoding_prefilling_and_waiting() -> None:
    engine = FakeEngine(max_rows=2)
    scheduler = Scheduler(engine, max_active=2)
    decoding = Client(scheduler, [1])
    scheduler.step()
    prefilling, waiting = Client(scheduler, [2] * 50), Client(scheduler, [3])
    scheduler.step()
    assert scheduler.load == (2, 1) and prefilling.job.prefilling
    seen = len(decoding.pieces)
    for client in (decoding, prefilling, waiting):
        scheduler.cancel(client.job)
    forwards = len(engine.batches)
    assert scheduler.step() is False
    assert scheduler.load == (0, 0) and engine.open_slots == 0 and len(engine.batches) == forwards
    assert len(decoding.pieces) == seen and not prefilling.pieces and not waiting.pieces
    assert decoding.error is prefilling.error is waiting.error is None
    scheduler.cancel(decoding.job)  # again, after the end


def test_a_failed_forward_fails_its_jobs_and_not_the_next() -> None:
    engine = FakeEngine()
    scheduler = Scheduler(engine, max_active=2)
    clients = [Client(scheduler, [i]) for i in range(3)]
    engine.fail_with = GoinferError("weights: chunk 3 is damaged")
    scheduler.step()
    engine.fail_with = None
    drain(scheduler)
    assert [str(c.error) for c in clients[:2]] == ["weights: chunk 3 is damaged"] * 2
    assert clients[2].done and engine.open_slots == 0


def test_unusable_logits_fail_one_job_only() -> None:
    class HalfBroken(FakeEngine):
        def _row(self, ids: list[int]):
            return super()._row(ids) * (float("nan") if ids[0] == 1 else 1.0)

    engine = HalfBroken()
    scheduler = Scheduler(engine, max_active=2)
    bad, good = Client(scheduler, [1]), Client(scheduler, [2])
    drain(scheduler)
    assert "nan" in str(bad.error) and good.ids == alone([2]) and engine.open_slots == 0


def test_too_many_waiting_are_refused() -> None:
    scheduler = Scheduler(FakeEngine(), max_active=1, max_waiting=2)
    Client(scheduler, [1])
    Client(scheduler, [1])
    with pytest.raises(BusyError):
        Client(scheduler, [1])


def test_no_room_for_a_token_ends_without_a_forward() -> None:
    engine = FakeEngine()
    scheduler = Scheduler(engine, max_active=1)
    client = Client(scheduler, [1], max_new_tokens=0)
    after = Client(scheduler, [2])
    drain(scheduler)
    assert client.ids == [-1] and client.done and after.done


def test_stop_fails_what_is_left() -> None:
    engine = FakeEngine(delay=0.01)
    scheduler = Scheduler(engine, max_active=1)
    clients = [Client(scheduler, [1], max_new_tokens=None) for _ in range(2)]
    scheduler.start()
    while not clients[0].pieces:
        pass
    scheduler.stop()
    assert all(isinstance(client.error, StoppedError) for client in clients)
    assert engine.open_slots == 0
    with pytest.raises(StoppedError):
        Client(scheduler, [1])


def test_a_sink_that_raises_loses_only_its_job() -> None:
    engine = FakeEngine()
    scheduler = Scheduler(engine, max_active=2)

    def broken(found: object) -> None:
        raise RuntimeError("Event loop is closed")

    scheduler.submit(Generation([1], SamplingParams(), vocabulary(), 128), broken)
    good = Client(scheduler, [2])
    drain(scheduler)
    assert good.done and engine.open_slots == 0
