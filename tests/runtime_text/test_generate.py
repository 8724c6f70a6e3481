"""The generation loop over a scripted engine: limits, finish reasons, characters, stops, slots."""

import pytest

from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.errors import ContextError, LogitsError
from goinfer.runtime.generate import Generation, Piece, generate
from goinfer.runtime.interfaces import Vocabulary
from goinfer.runtime.sampler import SamplingParams
from tests.runtime_text.text_fakes import (
    BOS,
    EOS,
    TURN,
    VOCAB,
    FakeEngine,
    FakeTokenizer,
    WordStream,
    script,
    vocabulary,
)

PROMPT = [BOS, 1, 2]


def answer(text: bytes | list[int], words: dict[int, str] | None = None, **params: object) -> list[Piece]:
    engine = FakeEngine(script(len(PROMPT), list(text)))
    pieces = list(generate(engine, vocabulary(words), PROMPT, SamplingParams(**params)))
    assert engine.open_slots == 0
    return pieces


def joined(pieces: list[Piece]) -> str:
    assert all(p.finish_reason is None for p in pieces[:-1])
    return "".join(p.text for p in pieces)


def test_ends_at_the_end_of_the_sequence() -> None:
    pieces = answer(b"hello")
    assert joined(pieces) == "hello"
    assert [p.id for p in pieces] == [*b"hello", EOS]
    assert pieces[-1].finish_reason == "stop" and not pieces[-1].shown and pieces[0].shown
    assert all(p.logprob is not None and p.logprob < 0 for p in pieces)


def test_ignore_eos_goes_on() -> None:
    pieces = answer(b"hi", ignore_eos=True, max_new_tokens=5)
    assert [p.id for p in pieces] == [*b"hi", EOS, EOS, EOS]
    assert joined(pieces) == "hi" and pieces[-1].finish_reason == "length"


def test_max_new_tokens() -> None:
    pieces = answer(b"hello", max_new_tokens=2)
    assert joined(pieces) == "he" and pieces[-1].finish_reason == "length"
    assert answer(b"hello", max_new_tokens=0) == [Piece(-1, "", finish_reason="length", shown=False)]


@pytest.mark.parametrize("limit", range(1, 7))
def test_never_half_a_character(limit: int) -> None:
    pieces = answer("a😀é".encode(), max_new_tokens=limit)
    assert joined(pieces) == {1: "a", 2: "a", 3: "a", 4: "a", 5: "a😀", 6: "a😀"}[limit]
    assert len(pieces) == limit


def test_special_tokens_have_no_text() -> None:
    assert joined(answer([TURN, *b"ok", TURN])) == "ok"


def test_nothing_of_a_stop_string_is_sent() -> None:
    words = {1: "DEF", 2: "G", 3: "HI", 4: "J"}
    pieces = answer([*b"abc", 1, 2, 3, 4, *b"k"], words, stop=("DEFGHIJ",))
    assert joined(pieces) == "abc" and pieces[-1].finish_reason == "stop" and not pieces[-1].shown
    assert [p.text for p in pieces] == ["a", "b", "c", ""]


def test_a_stop_string_inside_a_token_cuts_it() -> None:
    pieces = answer([1, *b"!"], {1: "one. two"}, stop=(". ",))
    assert [(p.text, p.finish_reason, p.shown) for p in pieces] == [("one", "stop", False)]


def test_withheld_text_comes_out_when_the_stop_does_not() -> None:
    assert joined(answer(b"xENy", stop=("END",))) == "xENy"
    assert joined(answer(b"xEN", stop=("END",))) == "xEN"
    pieces = answer(b"xEND", stop=("END",), max_new_tokens=3)
    assert joined(pieces) == "xEN" and pieces[-1].finish_reason == "length" and len(pieces) == 3
    assert all(p.shown for p in pieces)


def test_context_limit_names_limit_and_request() -> None:
    engine = FakeEngine(context=8)
    with pytest.raises(ContextError, match=r"9 tokens.*limit is 8") as caught:
        generate(engine, vocabulary(), [1] * 9, SamplingParams())
    assert (caught.value.limit, caught.value.request) == (8, 9)
    assert engine.open_slots == 0 and not engine.batches


@pytest.mark.parametrize(("prompt", "want"), [(5, 3), (7, 1), (8, 0)])
def test_the_context_ends_the_output(prompt: int, want: int) -> None:
    engine = FakeEngine(lambda ids: 65, context=8)
    pieces = list(generate(engine, vocabulary(), [1] * prompt, SamplingParams(max_new_tokens=8)))
    assert joined(pieces) == "A" * want and pieces[-1].finish_reason == "length"


def test_a_long_prompt_is_fed_in_chunks() -> None:
    engine = FakeEngine(max_rows=4)
    list(generate(engine, vocabulary(), [1] * 10, SamplingParams(max_new_tokens=2)))
    assert engine.batches == [[4], [4], [2], [1]]


def test_chunks_do_not_change_the_output() -> None:
    def ids(max_rows: int) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=5, max_new_tokens=20, ignore_eos=True)
        return [p.id for p in generate(FakeEngine(max_rows=max_rows), vocabulary(), [1, 2, 3, 4, 5], params)]

    assert ids(1) == ids(2) == ids(16)
    assert max(ids(1)) < VOCAB


def test_closing_the_iterator_closes_the_slot() -> None:
    engine = FakeEngine()
    pieces = generate(engine, vocabulary(), PROMPT, SamplingParams(ignore_eos=True))
    next(pieces)
    assert engine.open_slots == 1
    pieces.close()
    assert engine.open_slots == 0


def test_a_slot_with_a_beginning_is_continued_and_kept() -> None:
    engine = FakeEngine(script(5, b"ok"))
    slot = engine.new_slot()
    engine.forward([(slot, [7, 8, 9])])
    pieces = list(generate(engine, vocabulary(), [7, 8, 9, 10, 11], SamplingParams(), slot=slot))
    assert joined(pieces) == "ok" and engine.open_slots == 1
    assert engine.batches == [[3], [2], [1], [1]]
    assert slot.ids == [7, 8, 9, 10, 11, *b"ok"]


def test_without_a_tokenizer_ids_still_come() -> None:
    vocab = Vocabulary(VOCAB, frozenset({EOS}), None)
    engine = FakeEngine(script(3, b"hi"))
    pieces = list(generate(engine, vocab, PROMPT, SamplingParams()))
    assert [p.id for p in pieces] == [*b"hi", EOS] and joined(pieces) == ""
    with pytest.raises(UsageError, match="no tokenizer"):
        generate(engine, vocab, PROMPT, SamplingParams(stop=("x",)))


def test_a_completion_continues_the_prompts_text() -> None:
    """The space at its beginning, and a character the prompt began, are the output's own."""

    class Stripping(FakeTokenizer):
        def stream(self) -> WordStream:
            return WordStream(self.words, strip=True)

    vocab = Vocabulary(VOCAB, frozenset({EOS}), Stripping({1: " is"}))

    def text(prompt: list[int], tokens: list[int], continues: bool) -> str:
        engine = FakeEngine(script(len(prompt), tokens))
        return joined(list(generate(engine, vocab, prompt, SamplingParams(), continues=continues)))

    assert text([BOS, *b"that"], [1, 1], continues=True) == " is is"
    assert text([BOS, *b"that"], [1, 1], continues=False) == "is is"
    assert text([BOS], [1, 1], continues=True) == "is is"
    assert text([BOS, *"é".encode()[:1]], [*"é".encode()[1:], 1], continues=True) == "é is"


def test_bad_prompts_raise_before_the_first_piece() -> None:
    for prompt, message in (([], "no tokens"), ([VOCAB], "260 is outside"), ([-1], "-1 is outside")):
        with pytest.raises(UsageError, match=message):
            generate(FakeEngine(), vocabulary(), prompt, SamplingParams())


def test_unusable_logits_close_the_slot() -> None:
    class Broken(FakeEngine):
        def _row(self, ids: list[int]):
            return super()._row(ids) * float("nan")

    engine = Broken()
    with pytest.raises(LogitsError):
        list(generate(engine, vocabulary(), PROMPT, SamplingParams()))
    assert engine.open_slots == 0


def test_the_reported_seed_reproduces() -> None:
    def run(seed: int | None) -> tuple[list[int], int]:
        params = SamplingParams(temperature=1.0, seed=seed, max_new_tokens=12, ignore_eos=True)
        generation = Generation(PROMPT, params, vocabulary(), 128)
        engine, slot = FakeEngine(), FakeEngine().new_slot()
        feed = PROMPT
        while generation.finish_reason is None:
            generation.push(engine.forward([(slot, feed)])[0])
            feed = generation.ids[-1:]
        return generation.ids, generation.seed

    ids, seed = run(None)
    assert run(seed) == (ids, seed)
    assert run(None)[0] != ids
