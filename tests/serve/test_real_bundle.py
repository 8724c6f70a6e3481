"""The server over a compiled bundle: what a client gets does not depend on who else is being served."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import goinfer
from goinfer.serve.app import Access, Limits
from goinfer.serve.served import ServedModel
from tests.serve.conftest import Live, running

Bundles = Callable[[str, str, str], Path]


@pytest.fixture
def live(tiny_bundle: Bundles):
    with (
        goinfer.load(tiny_bundle("llama", "plain", "int8int8"), slots=4, max_rows=32) as model,
        running(model.engine, Access(), Limits(), vocabulary=model.vocabulary, encode_chat=None) as server,
    ):
        yield server


def tokens(live: Live, prompt: list[int], **settings: object) -> list[str]:
    asked = {"temperature": 0, "max_tokens": 24, "logprobs": 1, "extra_body": {"ignore_eos": True}, **settings}
    answer = live.client().completions.create(model="fake", prompt=prompt, **asked)
    assert answer.usage.completion_tokens == 24
    logprobs = answer.choices[0].logprobs
    return [f"{token} {logprob!r}" for token, logprob in zip(logprobs.tokens, logprobs.token_logprobs, strict=True)]


def prompt_of(number: int) -> list[int]:
    return [(7 * number + 3 * i) % 250 + 3 for i in range(5 + 13 * (number % 5))]


def test_neighbours_change_nothing(live: Live) -> None:
    """Same ids and the same bits of log-probability alone, among seven others, and again after them."""
    alone = [tokens(live, prompt_of(i)) for i in range(8)]
    together: dict[int, list[str]] = {}

    def ask(number: int) -> None:
        together[number] = tokens(live, prompt_of(number))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(8)] == alone
    assert tokens(live, prompt_of(3)) == alone[3]
    assert len({tuple(a) for a in alone}) > 1


def test_a_seed_gives_the_same_text_through_the_server_and_the_library(live: Live, tiny_bundle: Bundles) -> None:
    served = tokens(live, prompt_of(1), temperature=0.9, seed=11, top_p=0.9)
    assert served == tokens(live, prompt_of(1), temperature=0.9, seed=11, top_p=0.9)
    settings = {"temperature": 0.9, "seed": 11, "top_p": 0.9, "max_new_tokens": 24, "ignore_eos": True}
    with goinfer.load(tiny_bundle("llama", "plain", "int8int8")) as model:
        pieces = list(model.generate(prompt_of(1), **settings))
    assert [f"{piece.id} {piece.logprob!r}" for piece in pieces] == served


def test_served_model_fits_a_real_one(tiny_bundle: Bundles) -> None:
    with goinfer.load(tiny_bundle("llama", "plain", "int8int8")) as model:
        served = ServedModel("tiny", model.engine, model.vocabulary, 8, None)
        assert served.prompt_ids([1, 2]) == [1, 2] and served.vocabulary.size == model.engine.vocab
