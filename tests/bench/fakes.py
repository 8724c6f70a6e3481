"""Peers without their programs, for tests of everything around them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from goinfer.bench import arms


class FakeArm:
    """Takes a second a call, so that its rates are the numbers of tokens; remembers what it was asked to do."""

    name = "llama.cpp"
    calls: list[str]

    def __init__(self, path: Path, threads: int, context: int) -> None:
        self.calls = [f"open {path.name}"]

    def prefill(self, ids: Sequence[int]) -> float:
        self.calls.append(f"prefill {len(ids)}")
        return 1.0

    def hold(self, ids: Sequence[int]) -> None:
        self.calls.append(f"hold {len(ids)}")

    def decode(self, steps: int) -> float:
        self.calls.append(f"decode {steps}")
        return 1.0

    def release(self) -> None:
        self.calls.append("release")

    def close(self) -> None:
        self.calls.append("close")


def install(monkeypatch: pytest.MonkeyPatch, **peers: Callable[..., object] | None) -> None:
    """Make exactly these peers known: None for one that is not installed."""
    named = {name.replace("llama_cpp", "llama.cpp"): peer for name, peer in peers.items()}
    absent = {name: ("no_such_module", f"{name}-package") for name, peer in named.items() if peer is None}
    present = {name: ("json", f"{name}-package") for name, peer in named.items() if peer is not None}
    monkeypatch.setattr(arms, "PEERS", named)
    monkeypatch.setattr(arms, "_PACKAGES", {**absent, **present})
