"""Typed errors of the compiler: the checkpoint cannot be read, is not supported, or does not compile.

One class a cause, one line a message: what, where, what to do.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from goinfer.bundle_format.errors import GoinferError, shown


class CompileError(GoinferError):
    """A well-formed, supported checkpoint does not become a bundle."""


class WeightRangeError(CompileError):
    """A weight or scale lies outside what the chosen format can hold."""


MAX_MESSAGE = 800
"""Longest message: names and values in it come from files, which may hold anything."""


class SourceError(GoinferError):
    """Something about the source. The message quotes the source, so it is made one printable line of bounded length."""

    def __init__(self, message: str) -> None:
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message[: MAX_MESSAGE + 1])
        super().__init__(line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + " ...")


@contextmanager
def full_name(path: str | os.PathLike[str]) -> Iterator[None]:
    """Readers name a file of a checkpoint by its last part; of a source that is one file, give the path as given."""
    try:
        yield
    except SourceError as error:
        short, message = f"{shown(os.path.basename(path))}:", str(error)
        if not message.startswith(short):
            raise
        raise type(error)(f"{shown(path)}:{message.removeprefix(short)}") from None


class CheckpointError(SourceError):
    """A checkpoint is missing, damaged or contradicts itself; the message names file and tensor or key."""


class UnsupportedError(SourceError):
    """The checkpoint is well formed but uses something goinfer does not know; the message names it."""


class NotACheckpointError(CheckpointError):
    """The path is missing, or what is there is neither a GGUF file nor a safetensors directory."""


class LfsPointerError(NotACheckpointError):
    """The file is a Git LFS pointer: a few lines of text in the place of the real file."""


class CheckpointReadError(CheckpointError):
    """The operating system failed to read bytes that the file has."""


class CheckpointTruncatedError(CheckpointError):
    """The file ends before what its header describes."""


class TensorRangeError(CheckpointTruncatedError):
    """A tensor's bytes reach past the end of the file."""


class HeaderFormatError(CheckpointError):
    """The header does not follow its format."""


class CountError(HeaderFormatError):
    """A count or length is larger than the file can hold."""


class TensorShapeError(CheckpointError):
    """A tensor's dimensions are impossible, or contradict its type, its bytes or the config."""


class TensorTypeError(UnsupportedError):
    """A tensor has an element type that goinfer does not know."""


class TensorAlignmentError(HeaderFormatError):
    """The alignment is not one that the format allows, or a tensor does not start at a multiple of it."""


class OffsetError(HeaderFormatError):
    """A tensor's byte offsets are not a range."""


class OverlapError(HeaderFormatError):
    """Two tensors share bytes."""


class HoleError(HeaderFormatError):
    """There are bytes between or after the tensors that nothing describes."""


class DuplicateError(HeaderFormatError):
    """A key or a tensor occurs twice, in one file or across the parts of a split checkpoint."""


class SplitError(CheckpointError):
    """The parts of a split checkpoint are incomplete, contradict each other or were joined by hand."""


class MissingShardError(SplitError):
    """The index names files that are not there."""


class MissingTensorError(CheckpointError):
    """A tensor that the checkpoint must have is not there."""


class NonFiniteError(CheckpointError):
    """A weight is NaN or infinite; the message names the tensor and the index."""


class ConfigError(CheckpointError):
    """The config is missing, is not what its format asks for, or contradicts itself."""


class VocabularyError(CheckpointError):
    """The tokenizer has more tokens than the embedding has rows, or its own tables contradict each other."""
