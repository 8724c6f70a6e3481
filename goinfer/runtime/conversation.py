"""A chat of several turns over one slot: only what is new in a turn is computed."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from goinfer.bundle_format.errors import GoinferError
from goinfer.runtime.generate import Generation, Piece, run
from goinfer.runtime.sampler import SamplingParams

if TYPE_CHECKING:
    from goinfer.runtime.model import Model


class Conversation:
    """Messages so far and the slot that holds their state. Close it to give the slot back."""

    def __init__(self, model: "Model", system: str | None = None) -> None:
        self._model = model
        self._system = system
        self._slot = model.engine.new_slot()
        self._held: list[int] = []  # ids the slot's positions were filled with
        self.messages: list[dict[str, Any]] = []
        self.generation: Generation | None = None
        self.clear()

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, text: str, params: SamplingParams) -> Generator[Piece, None, None]:
        """Pieces of the answer. An iterator that is closed early keeps what was said so far as the answer.

        Raises ContextError, with the conversation as it was, when the window cannot hold it.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = self._model.chat_ids(messages)
        self.generation = Generation(ids, params, self._model.vocabulary, self._model.engine.context)
        self.messages = messages
        return self._run(self.generation)

    def close(self) -> None:
        """Give the slot back."""
        self._slot.close()

    def _run(self, generation: Generation) -> Generator[Piece, None, None]:
        self._rewind(generation.prompt_ids)
        said: list[str] = []
        try:
            for piece in run(self._model.engine, generation, self._slot):
                said.append(piece.text)
                yield piece
        finally:
            self._held = [*generation.prompt_ids, *generation.ids][: self._slot.length]
            self.messages.append({"role": "assistant", "content": "".join(said)})

    def _rewind(self, ids: list[int]) -> None:
        """Take the slot back to where its ids and `ids` part, at least one id before the end."""
        common = 0
        for old, new in zip(self._held, ids[:-1], strict=False):
            if old != new:
                break
            common += 1
        try:
            self._slot.truncate(common)
        except GoinferError:  # a sliding window has moved on: start over
            self._slot.close()
            self._slot = self._model.engine.new_slot()
