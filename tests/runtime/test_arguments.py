"""Arguments of the wrong kind, through the calls users make: one typed error of one line that names the argument.

Each was seen red before: a raw TypeError or AttributeError, or an answer to something that was not asked.
"""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goinfer
from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.runtime.model import Model
from goinfer.runtime.sampler import SamplingParams

HELLO = [{"role": "user", "content": "the hen"}]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NOT_NUMBERS = ["hot", "3", True, None, [1], {}, b"1", 1j, Decimal(1), np.bool_(True), np.ones(1), object()]
NOT_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, -(10**400)]
NUMBERS = ["temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"]
OPTIONAL = {"seed", "max_new_tokens", "logprobs"}
INTEGERS = ["top_k", *sorted(OPTIONAL)]

WRONG = [(name, value) for name in NUMBERS for value in NOT_NUMBERS + NOT_FINITE]
WRONG += [
    (name, value)
    for name in INTEGERS
    for value in [*NOT_NUMBERS, *NOT_FINITE, 2.5, 2.0, np.float64(2), -(2**64), 2**64]
    if not (value is None and name in OPTIONAL)
]
WRONG += [("ignore_eos", value) for value in (1, 0, "no", None, [], np.int64(1))]
WRONG += [("stop", value) for value in ("", ["a", ""], [3], [None], 3, None, b"x", [b"x"], {"a"}, {"a": 1}, "\ud800")]
WRONG += [("logit_bias", value) for value in (None, 3, "x", [1], [(1, 2.0)], {"5": 1.0}, {1.5: 1.0}, {True: 1.0})]
WRONG += [("logit_bias", {5: value}) for value in ("1", None, True, math.nan, 101, [1])]
WRONG += [("logit_bias", {token: 1.0}) for token in (-1, 2**40, 10**5000)]
WRONG += [(name, 3) for name in ("max_tokens", "temprature", "top_logprobs", "n")]


def kind_of(value: Any) -> str:
    return value if isinstance(value, str) and value.isidentifier() else type(value).__name__


@pytest.fixture(scope="module")
def model(tiny_bundle: Callable[[str, str, str], Path]) -> Iterator[Model]:
    with goinfer.load(tiny_bundle("llama", "plain/model.gguf", "int8int8"), context=64) as opened:
        opened._template = TEMPLATE
        yield opened


def refused(call: Callable[[], Any], name: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(name) and "\n" not in message and len(message) < 300, message
    assert "tuple" not in message


@pytest.mark.parametrize(("name", "value"), WRONG, ids=kind_of)
def test_sampling_arguments(model: Model, name: str, value: Any) -> None:
    refused(lambda: model.generate("the hen", **{name: value}), name)
    refused(lambda: model.chat(HELLO, **{name: value}), name)


def test_a_misspelt_argument_is_answered_with_the_right_name(model: Model) -> None:
    with pytest.raises(UsageError, match=r"max_tokens: .*max_new_tokens"):
        model.generate("the hen", max_tokens=3)


def test_numbers_of_other_libraries_are_numbers(model: Model) -> None:
    plain = SamplingParams(temperature=0.5, top_k=3, seed=7, max_new_tokens=2, logit_bias={5: 2.0}, stop=("x",))
    other = SamplingParams(
        temperature=np.float64(0.5), top_k=np.int32(3), seed=np.uint64(7), max_new_tokens=np.int64(2),
        logit_bias={np.int16(5): Fraction(2)}, stop=["x"], ignore_eos=np.bool_(False),
    )  # fmt: skip
    assert plain == other == SamplingParams(0.5, 3, seed=7, max_new_tokens=2, logit_bias={5: 2}, stop="x")
    kinds = {type(value) for value in vars(other).values()}
    assert kinds == {float, int, dict, tuple, bool}, "a value of the caller's type was kept"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("context", value) for value in ("64", 2.5, True, 0, -1, 10**30, [64])),
        *(("kv", value) for value in (3, ["f16"], "f64", b"f16")),
        *(("target", value) for value in (3, ["x86-64-v3"], "z80")),
        *(("verify", value) for value in (3, ["full"], "yes")),
        *((name, value) for name in ("threads", "slots", "max_rows") for value in ("2", 1.0, True, 0, 10**30)),
    ],
    ids=kind_of,
)
def test_options_of_load(tiny_bundle: Callable[[str, str, str], Path], name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        goinfer.load(tiny_bundle("llama", "plain", "int8int8"), **{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, b"m.giw", ["m.giw"]])
def test_a_path_that_is_none(path: Any) -> None:
    refused(lambda: goinfer.load(path), "path")


def test_stop_takes_one_string_or_several(model: Model) -> None:
    def text(**params: Any) -> str:
        return "".join(p.text for p in model.generate("the hen", max_new_tokens=20, ignore_eos=True, **params))

    whole = text()
    last = whole[-1]
    assert text(stop=last) == text(stop=[last]) == text(stop=(last,)) == whole[: whole.index(last)]


@pytest.mark.parametrize(
    "prompt",
    ["", "a\ud800", None, 5, b"the hen", bytearray(b"x"), {1: 2}, {1}, [1.0], ["a"], [True], [None], [[1]], []],
)
def test_prompts(model: Model, prompt: Any) -> None:
    """Bytes were taken for ids, and True for 1."""
    refused(lambda: model.generate(prompt), "prompt")


def test_prompts_of_ids(model: Model) -> None:
    want = [piece.id for piece in model.generate([4, 5], max_new_tokens=3)]
    for ids in ((4, 5), np.array([4, 5]), iter([4, 5]), range(4, 6)):
        assert [piece.id for piece in model.generate(ids, max_new_tokens=3)] == want
    refused(lambda: model.generate([10**5000]), "prompt")


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ([], "messages"), (None, "messages"), ("hi", "messages"), (b"hi", "messages"), ({"role": "user"}, "messages"),
        (iter(HELLO), "messages"), (["hi"], "messages[0]"), ([None], "messages[0]"), ([[]], "messages[0]"),
        ([{}], "messages[0].role"), ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"), ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": b"x"}], "messages[0].content"),
        ([*HELLO, {"role": "user", "content": "a\ud800"}], "messages[1].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "user", "content": "x", "contents": "y"}], "messages[0].contents"),
        ([{"role": "user", "content": "x", "annotations": [1]}], "messages[0].annotations"),
        ([{"role": "user", "content": "x", 3: "y"}], "messages[0].3"),
    ],
)  # fmt: skip
def test_messages(model: Model, messages: Any, name: str) -> None:
    refused(lambda: model.chat(messages), f"{name}:")
    refused(lambda: model.chat_ids(messages), f"{name}:")


def test_messages_that_are_accepted(model: Model) -> None:
    plain = model.chat_ids([{"role": "system", "content": "a"}, {"role": "user", "content": "bc"}])
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    empty = {"tool_calls": [], "annotations": [], "refusal": None}
    assert plain == model.chat_ids(({"role": "developer", "content": "a"}, {"role": "user", "content": parts, **empty}))
    assert model.chat_ids([{"role": "user", "content": ""}])
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}], "reasoning_content": "hm"}
    assert model.chat_ids([*HELLO, called, {"role": "tool", "content": "3", "tool_call_id": "a"}])


@pytest.mark.parametrize("text", [None, 3, b"x", ["x"], "a\ud800b", "\udcff", "\ud83d\ude42"])
def test_encode(model: Model, text: Any) -> None:
    """A pair of surrogates is no character either: JSON readers join them, so one that is left is damage."""
    refused(lambda: model.tokenizer.encode(text), "text")
    if isinstance(text, str):
        with pytest.raises(UsageError, match=r"U\+D[8C]\w\w at index [01]"):
            model.tokenizer.encode(text)
    else:
        refused(lambda: model.tokenizer.token_id(text), "text")


@pytest.mark.parametrize("ids", [None, 3, "abc", b"abc", {1}, {1: 2}, [1.0], ["a"], [None], [True], [[1]], np.ones(2)])
def test_decode(model: Model, ids: Any) -> None:
    """Bytes were decoded as ids."""
    refused(lambda: model.tokenizer.decode(ids), "ids")


@pytest.mark.parametrize("token", [None, "a", b"a", 1.0, True, [1], -1, 10**6, 10**5000], ids=kind_of)
def test_one_token(model: Model, token: Any) -> None:
    for call in (
        model.tokenizer.token_bytes,
        model.tokenizer.stream().push,
        lambda token: model.tokenizer.decode([token]),
    ):
        with pytest.raises(GoinferError) as caught:
            call(token)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_ids_of_every_kind_decode(model: Model) -> None:
    want = model.tokenizer.decode([10, 11])
    for ids in ((10, 11), iter([10, 11]), np.array([10, 11]), range(10, 12)):
        assert model.tokenizer.decode(ids) == want
