"""Bounded reading of files: positional, exact, with typed errors, safe to call from several threads."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format.errors import shown
from goinfer.compiler.errors import (
    CheckpointReadError,
    CheckpointTruncatedError,
    LfsPointerError,
    NotACheckpointError,
)

_LFS_START: Final = b"version https://git-lfs.github.com/spec/"


class SourceFile:
    """A regular file opened for positional reads. Holds a descriptor until close()."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = shown(path.name)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not wait for a writer
        except OSError as error:
            raise NotACheckpointError(f"{shown(path)}: cannot be opened: {error.strerror}") from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise NotACheckpointError(f"{shown(path)}: not a regular file")
        self.size = status.st_size

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill the whole contiguous buffer from `offset`."""
        view, done = memoryview(buffer.data).cast("B"), 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise CheckpointReadError(f"{self.name}: reading failed: {error.strerror}") from None
            if got == 0:
                raise CheckpointTruncatedError(
                    f"{self.name}: ends at byte {offset + done}, bytes up to {offset + len(view)} are needed"
                )
            done += got

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes; the size is checked against the file before anything is allocated."""
        if offset + size > self.size:
            raise CheckpointTruncatedError(
                f"{self.name}: ends at byte {self.size}, bytes up to {offset + size} are needed"
            )
        buffer = np.empty(size, np.uint8)
        if size:
            self.read_into(buffer, offset)
        return buffer.tobytes()

    def start(self, size: int) -> bytes:
        """The first bytes of the file, fewer where it is shorter."""
        return self.read(0, min(size, self.size))

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileSet:
    """The open files of a checkpoint, closed together."""

    def __init__(self, files: Iterable[SourceFile] = ()) -> None:
        self.files = list(files)

    def open(self, path: Path) -> SourceFile:
        """Open one more file."""
        self.files.append(SourceFile(path))
        return self.files[-1]

    def close(self) -> None:
        """Close every file."""
        for file in self.files:
            file.close()

    def __enter__(self) -> FileSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files if opening the checkpoint failed half way."""
        if kind is not None:
            self.close()


def refuse_lfs_pointer(file: SourceFile) -> None:
    """Raise LfsPointerError for a Git LFS pointer."""
    if file.start(len(_LFS_START)) == _LFS_START:
        raise LfsPointerError(f"{file.name}: a Git LFS pointer, not the file: run `git lfs pull` in its repository")
