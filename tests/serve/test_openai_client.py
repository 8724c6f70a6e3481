"""The official client against a live server: chat, completions, streams, usage, logprobs, limits."""

import math
import threading

import openai
import pytest

from tests.runtime_text.text_fakes import BOS, FakeEngine, script
from tests.serve.conftest import Start, encode_chat

HELLO = [{"role": "user", "content": "hi"}]
HELLO_IDS = encode_chat(HELLO)


def saying(text: bytes | list[int], prompt: int = len(HELLO_IDS), **settings: object) -> FakeEngine:
    return FakeEngine(script(prompt, list(text)), **settings)


def test_models_and_health(start: Start) -> None:
    client = start().client()
    models = client.models.list().data
    assert [model.id for model in models] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="this server has fake"):
        client.models.retrieve("other")


def test_chat(start: Start) -> None:
    answer = (
        start(saying("Grüß 😀".encode())).client().chat.completions.create(model="fake", messages=HELLO, temperature=0)
    )
    choice = answer.choices[0]
    assert choice.message.content == "Grüß 😀" and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert answer.usage.prompt_tokens == len(HELLO_IDS)
    assert answer.usage.completion_tokens == len("Grüß 😀".encode()) + 1  # and the token that ended it
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion" and answer.model == "fake"


def test_chat_stream_is_well_formed(start: Start) -> None:
    client = start(saying("a😀b".encode())).client()
    chunks = list(client.chat.completions.create(model="fake", messages=HELLO, temperature=0, stream=True))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "a😀b"
    assert all(chunk.choices[0].delta.content in ("a", "😀", "b") for chunk in chunks[1:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1].choices[0].delta.content is None
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_usage(start: Start) -> None:
    client = start(saying(b"abc")).client()
    stream = client.chat.completions.create(
        model="fake", messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 4
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7])
def test_stream_equals_whole_at_every_cut(start: Start, limit: int) -> None:
    client = start(saying("a😀é".encode())).client()
    settings = {"model": "fake", "messages": HELLO, "temperature": 0, "max_tokens": limit}
    whole = client.chat.completions.create(**settings).choices[0]
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**settings, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert "\ufffd" not in whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason == "length"


def test_stop_strings(start: Start) -> None:
    words = {1: "DEF", 2: "G", 3: "HI", 4: "J"}
    client = start(saying([*b"abc", 1, 2, 3, 4, *b"k"]), words=words).client()
    settings = {"model": "fake", "messages": HELLO, "temperature": 0, "stop": ["zzz", "DEFGHIJ"]}
    chunks = list(client.chat.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "abc"
    assert chunks[-1].choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(**settings, logprobs=True)
    assert answer.choices[0].message.content == "abc" and answer.choices[0].finish_reason == "stop"
    assert [entry.token for entry in answer.choices[0].logprobs.content] == ["a", "b", "c"]
    assert answer.usage.completion_tokens == 7


def test_chat_logprobs_agree_streamed_and_whole(start: Start) -> None:
    client = start(saying("é!".encode())).client()
    settings = {"model": "fake", "messages": HELLO, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**settings).choices[0].logprobs.content
    assert [entry.bytes for entry in whole] == [[0xC3], [0xA9], [0x21]]
    for entry in whole:
        assert entry.logprob < 0 and len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].bytes == entry.bytes and entry.top_logprobs[0].logprob == entry.logprob
        assert math.exp(entry.top_logprobs[0].logprob) + math.exp(entry.top_logprobs[1].logprob) <= 1
    chunks = list(client.chat.completions.create(**settings, stream=True))
    streamed = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == whole


def test_completions(start: Start) -> None:
    client = start(saying(b"yes", 4)).client()  # three bytes and the beginning of the sequence
    answer = client.completions.create(model="fake", prompt="abc", temperature=0, logprobs=1)
    choice = answer.choices[0]
    assert choice.text == "yes" and choice.finish_reason == "stop" and answer.object == "text_completion"
    assert choice.logprobs.tokens == ["y", "e", "s"] and choice.logprobs.text_offset == [0, 1, 2]
    assert [len(top) for top in choice.logprobs.top_logprobs] == [1, 1, 1]
    chunks = list(client.completions.create(model="fake", prompt=[BOS, 1, 2, 3], temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "yes"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 3 + ["stop"]


def test_completions_default_to_16_tokens(start: Start) -> None:
    client = start(FakeEngine(lambda ids: 65)).client()
    answer = client.completions.create(model="fake", prompt="abc")
    assert answer.choices[0].text == "A" * 16 and answer.choices[0].finish_reason == "length"


def test_several_prompts_are_several_choices(start: Start) -> None:
    client = start(FakeEngine(lambda ids: ids[1])).client()
    answer = client.completions.create(model="fake", prompt=["a", "b", "c", "d", "e", "f"], max_tokens=3)
    assert [(c.index, c.text) for c in answer.choices] == [(i, t * 3) for i, t in enumerate("abcdef")]
    assert answer.usage.completion_tokens == 18 and answer.usage.prompt_tokens == 12
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(model="fake", prompt=[[BOS, 97], [BOS, 98]], max_tokens=3, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "aaa", 1: "bbb"}


def test_no_tokens_asked_for(start: Start) -> None:
    answer = start().client().completions.create(model="fake", prompt="abc", max_tokens=0)
    assert answer.choices[0].text == "" and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 0


def test_the_window(start: Start) -> None:
    client = start(FakeEngine(lambda ids: 65, context=16)).client()
    with pytest.raises(openai.BadRequestError, match=r"17 tokens.*16") as caught:
        client.completions.create(model="fake", prompt=[1] * 17)
    assert caught.value.code == "context_length_exceeded"
    for length, count in ((16, 0), (15, 1), (14, 2)):
        answer = client.completions.create(model="fake", prompt=[1] * length, max_tokens=8)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == count == len(answer.choices[0].text)


def test_seed(start: Start) -> None:
    live = start(FakeEngine())
    client = live.client()

    def ask(seed: int | None) -> tuple[str, int]:
        settings = {"model": "fake", "prompt": "x", "max_tokens": 16, "extra_body": {"ignore_eos": True}}
        answer = client.completions.create(**settings, **({} if seed is None else {"seed": seed}), logprobs=0)
        return ",".join(map(str, answer.choices[0].logprobs.tokens)), answer.seed

    text, seed = ask(None)
    assert ask(seed) == (text, seed)
    assert ask(seed + 1)[0] != text

    def ask_two(**settings: int) -> tuple[list[str], int]:
        both = client.completions.create(model="fake", prompt=["x", "y"], max_tokens=16, **settings)
        return [choice.text for choice in both.choices], both.seed

    texts, seed = ask_two()
    assert ask_two(seed=seed) == (texts, seed)


def test_sixteen_clients_at_once_never_mix(start: Start) -> None:
    """Each is answered with the number in its own prompt, over and over."""
    prompt_length = 1 + 1 + len("u:00") + 1

    def echo(ids: list[int]) -> int:
        return ids[4 + (len(ids) - prompt_length) % 2] if len(ids) >= prompt_length else 0

    live = start(FakeEngine(echo, delay=0.001))
    client, got = live.client(), {}

    def ask(number: int) -> None:
        answer = client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": f"{number:02d}"}], max_tokens=20
        )
        got[number] = answer.choices[0].message.content

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {i: f"{i:02d}" * 10 for i in range(16)}
    assert max(len(batch) for batch in live.engine.batches) == 4, "requests were not batched"


def test_an_error_in_the_middle_of_a_stream_is_reported(start: Start) -> None:
    engine = FakeEngine(lambda ids: 65, delay=0.01)
    live = start(engine)
    stream = live.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
    next(stream), next(stream)
    engine.fail_with = RuntimeError("a secret in /home/someone/x")
    with pytest.raises(openai.APIError, match="internal error") as caught:
        list(stream)
    assert "secret" not in str(caught.value)


def test_busy(start: Start) -> None:
    from goinfer.serve.app import Limits

    live = start(FakeEngine(lambda ids: 65), limits=Limits(waiting=3))
    with pytest.raises(openai.RateLimitError, match="waiting already"):
        live.client().completions.create(model="fake", prompt=["x"] * 64, max_tokens=100)
    live.wait_idle()


def test_a_client_that_leaves_frees_its_slot(start: Start) -> None:
    engine = FakeEngine(lambda ids: 65, delay=0.02, context=100_000)
    live = start(engine)
    stream = live.client().chat.completions.create(model="fake", messages=HELLO, stream=True)
    next(stream), next(stream)  # the role, then the first text
    assert live.scheduler.load == (1, 0)
    stream.close()
    live.wait_idle()
    before = len(engine.batches)
    assert before < 60
