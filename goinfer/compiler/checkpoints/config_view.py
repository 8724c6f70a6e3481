"""A config whose every key must be used, or be named as irrelevant: a silent zero is how fluent, wrong models ship."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from goinfer.compiler.errors import ConfigError, UnsupportedError


class ConfigView(Mapping[str, Any]):
    """A read-only mapping that remembers which keys were read; nested objects are views too.

    Iterating over the keys reads nothing; `dict(view)`, `view[key]`, `get` and `require` read.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config", prefix: str = "") -> None:
        self._where = where
        self._prefix = prefix
        self._values = {
            key: ConfigView(value, where, f"{prefix}{key}.") if isinstance(value, Mapping) else value
            for key, value in values.items()
        }
        self._used: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self._used.add(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"ConfigView({self._values!r})"

    def require(self, key: str) -> Any:
        """The value of a key that must be there and not be null."""
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self._where}: key {self._prefix}{key} is missing")
        return value

    def unused(self) -> list[str]:
        """Dotted names of the keys that nothing has read. A null says nothing, so it never counts."""
        names: list[str] = []
        for key, value in self._values.items():
            if isinstance(value, ConfigView) and key in self._used:
                names.extend(value.unused())
            elif key not in self._used and value is not None:
                names.append(self._prefix + key)
        return names

    def finish(self, irrelevant: Iterable[str] = ()) -> None:
        """Raise UnsupportedError naming the keys that were neither read nor are in `irrelevant`."""
        left = sorted(set(self.unused()) - set(irrelevant))
        if left:
            named = ", ".join(left[:8]) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
            raise UnsupportedError(f"{self._where}: unknown config key {named}: it could change the numbers")
