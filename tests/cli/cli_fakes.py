"""A model without weights for the command line, and a way to run a command in this process."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.interfaces import Vocabulary
from tests.runtime_text.text_fakes import BOS, COLUMNS, EOS, TURN, VOCAB, FakeEngine, FakeTokenizer


class FakeModel:
    """Answers every prompt with `answer`, then ends. `loaded_with` are the options it was opened with."""

    def __init__(self, answer: bytes = b"hello", chat: bool = True, tokenizer: bool = True, **engine: Any) -> None:
        self.answer = list(answer)
        self.engine: Any = FakeEngine(self._next, **engine)
        self.engine.info = lambda: {"target": "fake-target", "threads": 2, "context": self.engine.context, "kv": "f16"}
        self.has_chat_template = chat
        self._tokenizer = FakeTokenizer() if tokenizer else None
        self.loaded_with: dict[str, Any] = {}
        self.closed = False
        self.prompts: list[list[int]] = []

    def _next(self, ids: list[int]) -> int:
        """The prompt ends at the last TURN, or at the last 10 (a newline) of a plain one."""
        ends = [i for i, token in enumerate(ids) if token in (TURN, 10)]
        done = len(ids) - ends[-1] - 1
        return self.answer[done] if done < len(self.answer) else EOS

    def chat_ids(self, messages: list[dict[str, Any]]) -> list[int]:
        ids = [BOS]
        for message in messages:
            ids += [TURN, *f"{message['role'][0]}:{message['content']}".encode()]
        self.prompts.append([*ids, TURN])
        return self.prompts[-1]

    @property
    def chat_template(self) -> object:
        if not self.has_chat_template:
            raise UsageError("this bundle has no chat template: use a plain prompt")
        return object()

    @property
    def tokenizer(self) -> FakeTokenizer:
        if self._tokenizer is None:
            raise UsageError("this bundle has no tokenizer: give token ids, with `goinfer logits --ids` or from Python")
        return self._tokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(VOCAB, frozenset({EOS}), self._tokenizer)

    def forward(self, ids: Sequence[int], hidden_states: bool = False) -> Any:
        logits = np.arange(len(ids) * COLUMNS, dtype=np.float32).reshape(len(ids), COLUMNS)
        return (logits, np.ones((4, len(ids), 8), np.float32)) if hidden_states else logits

    def __enter__(self) -> "FakeModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True
        assert self.engine.open_slots == 0


def opener(model: FakeModel) -> Any:
    def load(path: Any, **options: Any) -> FakeModel:
        model.loaded_with = {"path": str(path), **options}
        return model

    return load


def result(capsys: Any, code: int) -> SimpleNamespace:
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return SimpleNamespace(code=code, out=captured.out, err=captured.err)
