"""What the render of a chat template may use, and the count of it."""

import threading
import time
from dataclasses import dataclass
from typing import Any

from goinfer.runtime.chat_errors import TemplateLimitError

_TICKS_PER_CLOCK = 64


@dataclass(frozen=True)
class RenderLimits:
    """What one render may use."""

    seconds: float = 2.0
    chars: int = 8 << 20


class Budget(threading.local):
    """What is left of the render that runs in this thread."""

    def __init__(self) -> None:
        self.start(RenderLimits())

    def start(self, limits: RenderLimits) -> None:
        """A render begins."""
        self.limits = limits
        self.deadline = time.monotonic() + limits.seconds
        self.chars = limits.chars
        self.ticks = 0

    def tick(self) -> None:
        """One step of work."""
        self.ticks += 1
        if self.ticks % _TICKS_PER_CLOCK == 0 and time.monotonic() > self.deadline:
            raise TemplateLimitError(f"chat template: rendering took more than {self.limits.seconds:g} s")

    def emit(self, chars: int) -> None:
        """This much is written out, here or into a captured block."""
        self.tick()
        self.chars -= chars
        if self.chars < 0:
            raise TemplateLimitError(f"chat template: the output is over {self.limits.chars} characters")

    def fits(self, chars: int) -> None:
        """A text of this length may be made, if it is not written out."""
        self.tick()
        if chars > self.limits.chars:
            raise TemplateLimitError(f"chat template: a text is over {self.limits.chars} characters")

    def weigh(self, value: Any, indent: int = 0) -> None:
        """A list or dict of this size may be printed, compared or sorted.

        Counts what is reached more than once every time: lists that hold each other twice, sixty deep, are small in
        memory and endless to walk.
        """
        if not isinstance(value, list | tuple | dict):
            return
        left = self.limits.chars
        waiting: list[tuple[Any, int]] = [(value, 0)]
        while waiting:
            item, depth = waiting.pop()
            left -= 2 + indent * depth
            if isinstance(item, str):
                left -= len(item)
            elif isinstance(item, list | tuple):
                left -= len(item)
                waiting += [(inner, depth + 1) for inner in item] if left >= 0 else []
            elif isinstance(item, dict):
                left -= len(item)
                waiting += [(inner, depth + 1) for pair in item.items() for inner in pair] if left >= 0 else []
            if left < 0:
                raise TemplateLimitError(f"chat template: a list or dict is over {self.limits.chars} characters")
        self.tick()
