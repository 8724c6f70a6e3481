"""A loaded model: bundle, engine, tokenizer and chat template behind one object."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.reader import Bundle, Verify
from goinfer.runtime import checks
from goinfer.runtime.engine import Engine, Options
from goinfer.runtime.generate import Piece, generate
from goinfer.runtime.interfaces import Vocabulary
from goinfer.runtime.messages import check_messages
from goinfer.runtime.prompt import encode_prompt
from goinfer.runtime.sampler import MAX_COUNT, sampling_params
from goinfer.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:  # Jinja is imported once a conversation needs it
    from goinfer.runtime.chat import ChatTemplate
    from goinfer.runtime.chat_prompt import PromptBuilder


class Model:
    """What `goinfer.load` returns. Close it, or use it as a context manager, to stop its threads."""

    def __init__(self, bundle: Bundle, engine: Engine):
        self.bundle = bundle
        self.engine = engine
        self._tokenizer = Tokenizer(bundle.section("tokenizer")) if bundle.has("tokenizer") else None
        facts = json.loads(bytes(bundle.section("chat")))
        self._template: str | None = facts["template"]
        self.generation: dict[str, Any] = facts["generation"]
        self._chat: ChatTemplate | None = None
        self._prompts: PromptBuilder | None = None

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        threads: int | None = None,
        kv: str | None = None,
        context: int | None = None,
        target: str | None = None,
        max_rows: int = 512,
        slots: int = 8,
        verify: Verify | None = None,
    ) -> "Model":
        """Open and check a bundle, choose its best target here, start the worker threads.

        threads: default all usable cores. kv: "f32", "f16" or "int8"; default the recipe's. context: positions a
        sequence may hold; default the model's maximum, at most 4096. verify: how the weights are checked.
        """
        if context is not None:
            context = checks.whole("context", context, 1, MAX_COUNT)
        for name, value in (("kv", kv), ("target", target)):
            if value is not None:
                checks.text(name, value)
        checks.file_path("path", path, "a .giw bundle")
        bundle = Bundle.open(path, verify, wait=False)
        try:
            model = cls(bundle, Engine(bundle, Options(threads, kv, context, target, max_rows, slots)))
        except BaseException:
            bundle.close()
            raise
        try:
            bundle.finish_check()  # it ran while the program was bound; nothing has used the weights yet
        except BaseException:
            model.close()
            raise
        return model

    @property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer; raises UsageError for a bundle made without one."""
        if self._tokenizer is None:
            raise UsageError(
                "this bundle has no tokenizer: give token ids, with `goinfer logits --ids` or from Python"
            )
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether text can be encoded."""
        return self._tokenizer is not None

    @property
    def chat_template(self) -> "ChatTemplate":
        """The chat template; raises UsageError when the checkpoint had none."""
        if self._template is None:
            raise UsageError("this bundle has no chat template: use a plain prompt")
        if self._chat is None:
            from goinfer.runtime.chat import ChatTemplate

            self._chat = ChatTemplate.for_tokenizer(self._template, self.tokenizer)
        return self._chat

    @property
    def prompt_builder(self) -> "PromptBuilder":
        """Messages to ids; raises UsageError without a tokenizer or a template."""
        if self._prompts is None:
            from goinfer.runtime.chat_prompt import PromptBuilder

            self._prompts = PromptBuilder(self.tokenizer, self.chat_template)
        return self._prompts

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` works."""
        return self._template is not None and self._tokenizer is not None

    @property
    def vocabulary(self) -> Vocabulary:
        """What generation needs to know about tokens."""
        size = self.engine.vocab
        if self._tokenizer is not None:
            size = min(size, self._tokenizer.vocab_size)
        eos = self.generation.get("eos_token_ids") or []
        return Vocabulary(size, frozenset(int(i) for i in eos), self._tokenizer)

    def forward(
        self, ids: Sequence[int], hidden_states: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Logits [len(ids), vocab] float32 of a fresh sequence; with hidden states also

        [n_layers + 2, len(ids), hidden]: the embedding, after each layer, after the final norm.
        """
        with self.engine.new_slot() as slot:
            if hidden_states:
                return self.engine.forward_hidden(slot, ids)
            return self.engine.forward([(slot, ids)], wanted="all")

    def generate(self, prompt: str | Sequence[int], **params: Any) -> Iterator[Piece]:
        """Continue a prompt (text or ids, not empty); keyword arguments are those of SamplingParams."""
        settings = sampling_params(**params)
        if not isinstance(prompt, str):
            return generate(self.engine, self.vocabulary, prompt, settings)
        ids = encode_prompt(self.tokenizer, checks.prompt_text("prompt", prompt))
        return generate(self.engine, self.vocabulary, ids, settings, continues=True)

    def chat(self, messages: list[dict[str, Any]], **params: Any) -> Iterator[Piece]:
        """Answer a conversation: messages {"role", "content"}, at least one; see runtime/messages.py."""
        settings = sampling_params(**params)
        return generate(self.engine, self.vocabulary, self.chat_ids(messages), settings)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Ids of a rendered conversation: the template's markup as control tokens, content as plain text."""
        builder = self.prompt_builder
        return builder.build(check_messages(messages, tools=True), **variables).ids

    def close(self) -> None:
        """Stop the threads and unmap the bundle."""
        self.engine.close()
        self.bundle.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
