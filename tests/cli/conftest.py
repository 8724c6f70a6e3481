from collections.abc import Callable
from types import SimpleNamespace

import pytest

import goinfer
from goinfer.cli.main import main
from tests.cli.cli_fakes import FakeModel, opener, result

Cli = Callable[..., SimpleNamespace]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """cli("run", "m.giw", ..., model=FakeModel()) -> code, out, err."""

    def invoke(*args: str, model: FakeModel | None = None) -> SimpleNamespace:
        monkeypatch.setattr(goinfer, "load", opener(model or FakeModel()))
        return result(capsys, main(list(args)))

    return invoke
