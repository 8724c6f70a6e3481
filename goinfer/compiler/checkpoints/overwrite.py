"""No bundle replaces the checkpoint that it is made from."""

import os
from collections.abc import Iterator
from pathlib import Path

from goinfer.bundle_format import spec
from goinfer.bundle_format.errors import UsageError, shown
from goinfer.bundle_format.output import refuse_same

_GGUF = b"GGUF"


def refuse_overwriting(source: str | os.PathLike[str], out: str | os.PathLike[str]) -> None:
    """Raise UsageError where writing a bundle to `out` would replace a file of the checkpoint `source`.

    That is: the file itself, whatever is in the source directory, a GGUF file (which may be another part of a split
    model). An older bundle may be replaced wherever it is.
    """
    refuse_same(out, [source], "bundle")
    start = _start(os.path.realpath(out))  # what is written: `none/../m.gguf` too leads to m.gguf
    if start is None or start == spec.MAGIC:
        return
    if start.startswith(_GGUF):
        raise UsageError(f"{shown(out)}: the bundle would replace a GGUF file: choose another name")
    if os.path.isdir(source):
        root = Path(os.path.realpath(source))
        if any(place.is_relative_to(root) for place in _places(out)):
            raise UsageError(f"{shown(out)}: the bundle would replace its source: choose another name")
        refuse_same(out, root.iterdir(), "bundle")


def _start(path: str) -> bytes | None:
    """The first bytes of an existing regular file; None for anything else, which is not replaced."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            return file.read(len(spec.MAGIC))
    except OSError:
        return b""


def _places(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Where the name is, and where the file is that it leads to."""
    yield Path(os.path.realpath(path))
    folder, name = os.path.split(os.path.abspath(path))
    yield Path(os.path.realpath(folder), name)
