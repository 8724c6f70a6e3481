"""Where a file that goinfer writes may go, and how it takes its name: whole, by a rename.

A symbolic link is followed and stays a link. What exists must be a regular file: a device, a pipe or a socket would
otherwise be replaced for everybody who uses it.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from goinfer.bundle_format.errors import DiskFullError, OutputError, UsageError, shown

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Output:
    """A path to write to. `what` names its contents in messages; `temp` is beside the file that `path` leads to."""

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.where, self._what = shown(path), what
        if not os.fspath(path):
            raise OutputError("cannot write: the path is empty: give a file name")
        try:
            self.path = Path(os.path.realpath(path))
        except (OSError, ValueError) as error:
            raise OutputError(f"cannot write: {self.where}: {error}: choose another name") from error
        # The name is known before the file exists, so an interrupt in between cannot leave it behind.
        self.temp = self.path.with_name(f".{self.path.name[:100]}.{secrets.token_hex(6)}.part")

    def check(self) -> None:
        """Raise OutputError for what can be seen to be no place for a file."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            self._check_folder()
        except OSError as error:
            raise self.failed(error) from error
        else:
            if stat.S_ISDIR(mode):
                raise OutputError(f"cannot write: {self.where}: it is a directory: give a file name")
            if not stat.S_ISREG(mode):
                raise OutputError(f"cannot write: {self.where}: it is no regular file: choose another name")

    def _check_folder(self) -> None:
        if not self.path.parent.is_dir():
            raise OutputError(f"cannot write: {self.where}: its directory does not exist: make it, or choose another")

    def failed(self, error: OSError) -> OutputError:
        """The typed form of what the system said while this was written."""
        if error.errno in _FULL:
            return DiskFullError(
                f"no room for the {self._what}: {self.where}: {error.strerror}: free space or write elsewhere"
            )
        return OutputError(f"cannot write: {self.where}: {error.strerror or error}: choose another place")

    def create(self) -> int:
        """A descriptor of the new, empty temporary file."""
        self.check()
        try:
            return os.open(self.temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self.failed(error) from error

    @contextlib.contextmanager
    def replacing(self) -> Iterator[BinaryIO]:
        """A file to write; it takes its name when the block ends well, and leaves nothing behind when not."""
        try:
            with os.fdopen(self.create(), "w+b") as file:
                yield file
            os.replace(self.temp, self.path)
        except OSError as error:
            raise self.failed(error) from error
        finally:
            self.temp.unlink(missing_ok=True)


def refuse_same(out: str | os.PathLike[str], sources: Iterable[str | os.PathLike[str]], what: str) -> None:
    """Raise UsageError where `out` is one of the files that are read, by the same name or another."""
    for source in sources:
        if _same(out, source):
            raise UsageError(f"{shown(out)}: the {what} would replace its source: choose another name")


def _same(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    try:
        return os.path.realpath(a) == os.path.realpath(b) or os.path.samefile(a, b)
    except (OSError, ValueError):
        return False
