"""Sampler: what each parameter keeps, the statistics of the draw, seeds, refusals."""

import math

import numpy as np
import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.errors import LogitsError
from goinfer.runtime.sampler import Sampler, SamplingParams, _nucleus


def logits(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, np.float32))


def drawn(row: np.ndarray, n: int = 400, **params: float) -> set[int]:
    sampler = Sampler(SamplingParams(seed=1, logprobs=None, **params), row.size)
    return {sampler.sample(row).id for _ in range(n)}


def reference_filter(row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The surviving ids by the textbook definition, one token at a time, in float64."""
    scores = row.astype(np.float64) / temperature
    alive = list(np.argsort(-scores, kind="stable"))
    if top_k:
        kth = scores[alive[min(top_k, len(alive)) - 1]]
        alive = [i for i in alive if scores[i] >= kth]
    p = {i: math.exp(scores[i] - scores[alive[0]]) for i in alive}
    total, before, kept = sum(p.values()), 0.0, []
    for i in alive:
        if not kept or before / total < top_p:
            kept.append(i)
        before += p[i]
    return {int(i) for i in kept if p[i] >= min_p * p[kept[0]]}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 4, 30])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3, 0.01])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_survivors_match_the_definition(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    row = np.random.default_rng(3).standard_normal(12).astype(np.float32) * 2
    want = reference_filter(row, temperature, top_k, top_p, min_p)
    flat = temperature == 2.5  # so flat that every survivor shows up
    got = drawn(row, 1500 if flat else 150, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert got <= want
    if flat:
        assert got == want


def test_frequencies_follow_the_probabilities() -> None:
    row = logits(0.5, 0.25, 0.125, 0.125)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=7, logprobs=None), 4)
    counts = np.bincount([sampler.sample(row).id for _ in range(20000)], minlength=4) / 20000
    assert np.abs(counts - [0.5, 0.25, 0.125, 0.125]).max() < 0.012
    sampler = Sampler(SamplingParams(temperature=0.5, seed=7, logprobs=None), 4)
    counts = np.bincount([sampler.sample(row).id for _ in range(20000)], minlength=4) / 20000
    squares = np.array([0.25, 0.0625, 0.015625, 0.015625])
    assert np.abs(counts - squares / squares.sum()).max() < 0.012


def test_top_p_on_a_flat_vocabulary_takes_its_share() -> None:
    assert len(drawn(np.zeros(200, np.float32), 4000, temperature=1.0, top_p=0.25)) == 50


def test_top_p_beyond_the_first_guess() -> None:
    """A nucleus that reaches below exp(-16) of the peak: one sharp token and a long flat tail."""
    weights = np.full(300_000, math.exp(-16.5), np.float32)
    weights[5] = 1.0
    tail = 299_999 * math.exp(-16.5)
    kept = _nucleus(weights, (1 + tail / 2) / (1 + tail))
    assert kept[0] == 5 and abs(len(kept) - 150_000) < 20 and kept[1:].max() < 150_020


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    row = np.array([0, 3, 1, 3], np.float32)
    assert drawn(row, 3) == {1}
    assert drawn(row, 3, temperature=1e-30) == {1}


def test_top_k_keeps_ties_at_the_border() -> None:
    assert drawn(np.array([1, 3, 1, 0], np.float32), temperature=1.0, top_k=2) == {0, 1, 2}


def test_padding_columns_never_win() -> None:
    row = np.array([0, 1, 50, np.nan], np.float32)
    for temperature in (0.0, 1.0):
        sampler = Sampler(SamplingParams(temperature=temperature, seed=0, logprobs=2), 2)
        choices = [sampler.sample(row) for _ in range(50)]
        assert {c.id for c in choices} <= {0, 1}
        assert {i for c in choices for i, _ in c.top} == {0, 1}
        assert sum(math.exp(lp) for _, lp in choices[0].top) == pytest.approx(1.0)


def test_masked_tokens_have_no_chance() -> None:
    row = np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32)
    assert drawn(row, temperature=5.0) == {1, 3}


@pytest.mark.parametrize(("raw", "want"), [(0, 1), (2**64 - 1, 2), (2**63, 2)])
def test_the_ends_of_the_draw(raw: int, want: int) -> None:
    """The smallest draw does not pick a leading token of weight zero, the largest not one behind the last."""

    class Fixed:
        def random_raw(self) -> int:
            return raw

    sampler = Sampler(SamplingParams(temperature=1.0, logprobs=None), 5)
    sampler._bits = Fixed()
    assert sampler.sample(np.array([-np.inf, 0, 0, -np.inf, -np.inf], np.float32)).id == want


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unusable_logits_are_an_error(temperature: float, bad: float) -> None:
    row = np.zeros(8, np.float32)
    row[3] = bad
    with pytest.raises(LogitsError, match=r"(nan|inf) at token 3"):
        Sampler(SamplingParams(temperature=temperature), 8).sample(row)
    with pytest.raises(LogitsError, match="-inf"):
        Sampler(SamplingParams(temperature=temperature), 8).sample(np.full(8, -np.inf, np.float32))
    with pytest.raises(LogitsError, match="7 columns"):
        Sampler(SamplingParams(temperature=temperature), 8).sample(np.zeros(7, np.float32))


def test_same_seed_same_tokens_and_the_seed_is_reported() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 500)).astype(np.float32)

    def text(seed: int | None) -> tuple[list[int], int]:
        sampler = Sampler(SamplingParams(temperature=1.0, top_p=0.95, seed=seed, logprobs=None), 500)
        return [sampler.sample(row).id for row in rows], sampler.seed

    first, seed = text(None)
    assert text(seed) == (first, seed)
    assert text(seed + 1)[0] != first
    assert text(None)[0] != first
    assert text(-1)[1] == -1 and text(2**63)[0] == text(2**63)[0]


def test_the_draw_is_pinned() -> None:
    """Changing this changes every seeded text users have kept."""
    row = np.zeros(1000, np.float32)
    sampler = Sampler(SamplingParams(temperature=1.0, seed=42, logprobs=None), 1000)
    raw = np.random.Philox(key=42)
    want = [int((int(raw.random_raw()) >> 11) * 2.0**-53 * 1000) for _ in range(8)]
    assert [sampler.sample(row).id for _ in range(8)] == want


def test_repeat_penalty_covers_prompt_and_output() -> None:
    row = np.array([2.0, 1.5, -1.0, -1.2], np.float32)
    sampler = Sampler(SamplingParams(repeat_penalty=2.0), 4, prompt_ids=[0])
    assert [sampler.sample(row).id for _ in range(3)] == [1, 0, 0]  # 1.0 against 1.5, then 1.0 against 0.75
    negative = Sampler(SamplingParams(repeat_penalty=2.0), 4, prompt_ids=[0, 1, 2])
    low = np.array([-9, -9, -1.0, -1.2], np.float32)
    assert negative.sample(low).id == 3


def test_presence_and_frequency_count_the_output_only() -> None:
    row = np.array([1.0, 0.5, 0.0], np.float32)
    prompt = [0, 0, 0]
    presence = Sampler(SamplingParams(presence_penalty=0.7), 3, prompt)
    assert [presence.sample(row).id for _ in range(4)] == [0, 1, 0, 0]
    both = Sampler(SamplingParams(presence_penalty=0.7, repeat_penalty=1.001), 3, prompt)
    assert [both.sample(row).id for _ in range(4)] == [0, 1, 0, 0]
    frequency = Sampler(SamplingParams(frequency_penalty=0.3), 3, prompt)
    assert [frequency.sample(row).id for _ in range(5)] == [0, 0, 1, 0, 1]


def test_history_longer_than_its_first_allocation() -> None:
    sampler = Sampler(SamplingParams(presence_penalty=2.0), 300)
    row = -np.arange(300, dtype=np.float32) / 1000
    assert [sampler.sample(row).id for _ in range(300)] == list(range(300))


def test_logit_bias() -> None:
    row = np.array([1.0, 0.5, 0.0], np.float32)
    assert Sampler(SamplingParams(logit_bias={2: 5.0}), 3).sample(row).id == 2
    assert Sampler(SamplingParams(logit_bias={0: -100.0}), 3).sample(row).id == 1
    assert row[0] == 1.0, "the caller's logits were changed"
    with pytest.raises(UsageError, match="token 3 is outside the vocabulary of 3"):
        Sampler(SamplingParams(logit_bias={3: 1.0}), 3)


def test_logprobs_are_the_models_own() -> None:
    row = logits(0.5, 0.3, 0.2)
    params = SamplingParams(temperature=2.0, seed=1, logprobs=2, logit_bias={2: 100.0})
    choice = Sampler(params, 3).sample(row)
    assert choice.id == 2
    assert choice.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert choice.top == ((0, pytest.approx(math.log(0.5), abs=1e-6)), (1, pytest.approx(math.log(0.3), abs=1e-6)))
    assert Sampler(SamplingParams(logprobs=None), 3).sample(row).logprob is None
    assert len(Sampler(SamplingParams(logprobs=20), 3).sample(row).top) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("repeat_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", math.nan),
        ("logit_bias", {1: 101.0}),
        ("max_new_tokens", -1),
        ("logprobs", -1),
        ("stop", ("",)),
    ],
)
def test_bad_parameters_are_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=field) as caught:
        SamplingParams(**{field: value})
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
