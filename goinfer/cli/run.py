"""`goinfer run`: one prompt, or a conversation on a terminal."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.cli.entry import report
from goinfer.cli.options import Bundle, Context, Json, Kv, Target, Threads, Verify, load, print_json
from goinfer.cli.params import Option

if TYPE_CHECKING:
    from goinfer.runtime.generate import Generation, Piece
    from goinfer.runtime.model import Model
    from goinfer.runtime.sampler import SamplingParams


DEFAULT_TOKENS = 512
"""Enough for an answer; a small model that repeats itself would else go on until the context is full."""


@dataclass
class Timing:
    """Tokens and seconds of one answer. The clock starts when the prompt is ready."""

    started: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0

    def watch(self, pieces: "Iterable[Piece]") -> "Iterator[Piece]":
        """Pass pieces on and note when they came."""
        for piece in pieces:
            self.last = time.perf_counter()
            self.first = self.first or self.last
            yield piece

    def facts(self, generation: "Generation") -> dict[str, Any]:
        """Rates, None for what did not run; the first token belongs to the prompt's time."""
        prompt, output = len(generation.prompt_ids), len(generation.ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "prompt_seconds": round(self.first - self.started, 6),
            "completion_seconds": round(self.last - self.first, 6),
            "prompt_tokens_per_second": _rate(prompt if output else 0, self.first - self.started),
            "completion_tokens_per_second": _rate(output - 1, self.last - self.first),
        }


def _rate(count: int, seconds: float) -> float | None:
    return round(count / seconds, 2) if count > 0 and seconds > 0 else None


def _speed(rate: float | None) -> str:
    return "" if rate is None else f", {rate} tokens/s"


def run(
    model: Bundle,
    prompt: Annotated[str | None, Option("--prompt", "-p", help="Answer this and end.")] = None,
    raw: Annotated[
        bool, Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    system: Annotated[str | None, Option("--system", help="System message.")] = None,
    temp: Annotated[float, Option("--temp", help="Temperature; 0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[float, Option("--top-p", help="Sample from the top share of probability; 1 is off.")] = 0.95,
    top_k: Annotated[int, Option("--top-k", help="Sample from the k likeliest tokens; 0 is off.")] = 40,
    min_p: Annotated[float, Option("--min-p", help="Least probability, relative to the likeliest.")] = 0.0,
    repeat_penalty: Annotated[float, Option("--repeat-penalty", help="Divides repeated logits; 1 is off.")] = 1.0,
    presence_penalty: Annotated[float, Option("--presence-penalty", help="-2 to 2.")] = 0.0,
    frequency_penalty: Annotated[float, Option("--frequency-penalty", help="-2 to 2.")] = 0.0,
    seed: Annotated[int | None, Option("--seed", help="Same seed, same text; default: a new one, told.")] = None,
    max_tokens: Annotated[
        int | None, Option("--max-tokens", "-n", help=f"At most this many tokens; default: {DEFAULT_TOKENS}.")
    ] = None,
    stop: Annotated[list[str] | None, Option("--stop", help="End before this text; repeat for more.")] = None,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on after the end of the sequence.")] = False,
    threads: Threads = None,
    kv: Kv = None,
    context: Context = None,
    target: Target = None,
    verify: Verify = None,
    stats: Annotated[bool, Option("--stats", help="Print speed on stderr.")] = False,
    json: Json = False,
) -> None:
    """Answer a prompt, or talk: without -p on a terminal this is a chat; elsewhere the prompt is read from stdin."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads for products that nobody here makes
    from goinfer.runtime.checks import prompt_text, text

    params = _sampling(
        temperature=temp, top_p=top_p, top_k=top_k, min_p=min_p, repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed,
        max_new_tokens=DEFAULT_TOKENS if max_tokens is None else max_tokens,
        stop=stop or (), ignore_eos=ignore_eos, logprobs=None,
    )  # fmt: skip
    if prompt is not None:
        prompt_text("--prompt", prompt)
    if system is not None:
        text("--system", system)
    talk = prompt is None and sys.stdin.isatty() and not json
    if talk and raw:
        raise UsageError("--raw: needs a prompt: give one with -p")
    if prompt is None and not talk:
        prompt = _piped_prompt()
    with load(model, threads=threads, kv=kv, context=context, target=target, verify=verify, slots=1) as opened:
        show = Show(opened, params, stats, json, talk, told_limit=max_tokens is not None)
        show.banner(model)
        if talk:
            _talk(opened, params, system, show)
        else:
            _answer_once(opened, params, show, prompt=str(prompt), system=system, raw=raw)


_OPTIONS = {"temperature": "--temp", "max_new_tokens": "--max-tokens"}


def _sampling(**values: Any) -> "SamplingParams":
    """The settings; what is wrong with one is said of the option that gave it."""
    from goinfer.runtime.errors import ArgumentError
    from goinfer.runtime.sampler import SamplingParams

    try:
        return SamplingParams(**values)
    except ArgumentError as error:
        option = f"--{error.name.partition('[')[0].replace('_', '-')}"
        raise UsageError(f"{_OPTIONS.get(error.name, option)}: {error.problem}") from None


def _piped_prompt() -> str:
    from goinfer.runtime.checks import text

    prompt = text("stdin", sys.stdin.read()).removesuffix("\n")  # the one that echo and a here-document add
    if not prompt:
        raise UsageError("no prompt: give one with -p or on stdin")
    return prompt


class Show:
    """What a run prints besides the text itself."""

    def __init__(
        self, model: "Model", params: "SamplingParams", stats: bool, json: bool, talk: bool, told_limit: bool
    ) -> None:
        self._model = model
        self._told_limit = told_limit
        self._params = params
        self._stats = stats
        self._banner = talk or stats
        self.json = json

    def banner(self, path: Path) -> None:
        """What was opened and how, on stderr."""
        if self._banner:
            facts = self._model.engine.info()
            print(
                f"{path.name}: {facts['target']}, {facts['threads']} threads, context {facts['context']},"
                f" kv {facts['kv']}",
                file=sys.stderr,
            )

    def text(self, pieces: "Iterable[Piece]") -> str:
        """Print pieces as they come, unless the result is to be JSON; the whole text."""
        parts: list[str] = []
        for piece in pieces:
            parts.append(piece.text)
            if not self.json and piece.text:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        text = "".join(parts)
        if not self.json and text:
            print(flush=True)
        return text

    def end(self, generation: "Generation", timing: Timing) -> None:
        """That the answer was cut, the seed if it mattered and nobody chose one, and speed."""
        if generation.finish_reason == "length":
            self._cut(len(generation.ids))
        if self._params.seed is None and self._params.temperature > 0 and generation.ids:
            print(f"seed {generation.seed}", file=sys.stderr)
        if self._stats:
            facts = timing.facts(generation)
            parts = [
                f"{label} {facts[f'{kind}_tokens']} tokens{_speed(facts[f'{kind}_tokens_per_second'])}"
                for label, kind in (("prompt", "prompt"), ("output", "completion"))
            ]
            print("; ".join(parts), file=sys.stderr)

    def _cut(self, tokens: int) -> None:
        """An answer that ended without its end: whoever set the limit with -n knows."""
        if tokens != self._params.max_new_tokens:
            size = self._model.engine.context
            print(f"cut: the context of {size} tokens is full: --context may allow more", file=sys.stderr)
        elif not self._told_limit:
            print(f"cut after {DEFAULT_TOKENS} tokens: -n allows more", file=sys.stderr)


def _answer_once(
    model: "Model", params: "SamplingParams", show: Show, *, prompt: str, system: str | None, raw: bool
) -> None:
    from goinfer.runtime import generate
    from goinfer.runtime.prompt import encode_prompt

    chat = model.has_chat_template and not raw
    if system is not None and not chat:
        raise UsageError("--system: needs a chat template, and this run uses none")
    if chat:
        messages = [{"role": "system", "content": system}] if system else []
        ids = model.chat_ids([*messages, {"role": "user", "content": prompt}])
    else:
        ids = encode_prompt(model.tokenizer, prompt)
    generation = generate.Generation(ids, params, model.vocabulary, model.engine.context, continues=not chat)
    timing = Timing()
    with closing(generate.run(model.engine, generation)) as pieces:
        text = show.text(timing.watch(pieces))
    if show.json:
        facts = {"text": text, "ids": generation.ids, "finish_reason": generation.finish_reason}
        print_json({**facts, "seed": generation.seed, **timing.facts(generation)})
    show.end(generation, timing)


def _talk(model: "Model", params: "SamplingParams", system: str | None, show: Show) -> None:
    from goinfer.runtime.conversation import Conversation

    with suppress(ImportError):
        import readline  # noqa: F401  line editing for input()
    model.chat_template  # noqa: B018  a bundle that cannot chat says so before the first question
    conversation = Conversation(model, system)
    print("/clear starts over, /exit ends", file=sys.stderr)
    try:
        while (text := _ask()) is not None:
            if text == "/clear":
                conversation.clear()
            elif text:
                _turn(conversation, params, text, show)
    finally:
        conversation.close()


def _ask() -> str | None:
    try:
        text = input("> ").strip()
    except EOFError:
        print()
        return None
    return None if text in ("/exit", "/quit") else text


def _turn(conversation: Any, params: "SamplingParams", text: str, show: Show) -> None:
    """One question and its answer; Ctrl-C ends the answer, an error ends the turn."""
    from goinfer.runtime.checks import text as checked

    timing = Timing()
    try:
        checked("input", text)
        with closing(conversation.answer(text, params)) as pieces:
            try:
                show.text(timing.watch(pieces))
            except KeyboardInterrupt:
                print()
    except GoinferError as error:
        report("goinfer", error)
        return
    show.end(conversation.generation, timing)
