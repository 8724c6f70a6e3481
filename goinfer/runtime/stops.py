"""Stop strings over a text that arrives in pieces: what may be shown now, and where to end."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scan:
    """`safe` more characters can be shown; `hit` means a stop string begins right after them."""

    safe: int
    hit: bool


class StopScanner:
    """Finds the first stop string to complete, wherever the pieces are cut.

    Text that may turn out to be the beginning of a stop string is withheld until that is decided, so no part
    of a stop string is ever released. Of two stop strings that complete at the same character the longer counts.
    The answer does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._pending = ""

    def push(self, text: str) -> Scan:
        """Add `text`; not to be called again after a hit."""
        self._pending += text
        first = min(
            ((start + len(stop), start) for stop in self._stops if (start := self._pending.find(stop)) >= 0),
            default=None,
        )
        if first is not None:
            return Scan(first[1], True)
        safe = len(self._pending) - self._withheld()
        self._pending = self._pending[safe:]
        return Scan(safe, False)

    def _withheld(self) -> int:
        """Length of the longest end of the pending text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for size in range(min(longest, len(self._pending)), 0, -1):
            tail = self._pending[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
