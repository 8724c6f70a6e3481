"""The header of a GGUF file: metadata and tensor table, checked before anything is believed.

Every count and length is compared with the bytes that are left in the file before memory is taken for it, so a
hostile header costs no more than its own size. Products are Python integers: nothing wraps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from goinfer.compiler.checkpoints.files import SourceFile
from goinfer.compiler.checkpoints.ggml_types import BY_NUMBER, OTHER_NAMES, GgmlType
from goinfer.compiler.errors import (
    CheckpointTruncatedError,
    CountError,
    DuplicateError,
    HeaderFormatError,
    NotACheckpointError,
    TensorAlignmentError,
    TensorShapeError,
    TensorTypeError,
    UnsupportedError,
)

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 65536
MAX_DIMENSIONS: Final = 4
MAX_VALUES: Final = 1 << 48
MAX_NAME: Final = 1024
"""Longest name of a key or tensor, in bytes."""

_WINDOW: Final = 1 << 18
_STRING, _ARRAY = 8, 9
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_UNSIGNED_32: Final = 4
_SMALLEST_KEY: Final = 8 + 1 + 4 + 1  # length, one byte of name, type, one byte of value
_SMALLEST_TENSOR: Final = 8 + 1 + 4 + 8 + 4 + 8  # length, one byte of name, n_dims, one dim, type, offset


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table. `shape` is in NumPy order; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """A parsed header. `data_start` is the file offset of the tensor data."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    alignment: int
    data_start: int


class _Cursor:
    """Reads forward through a file in windows; refuses to go past its end."""

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.position = 0
        self._window = b""
        self._start = 0

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file.size - self.position

    def take(self, size: int, what: str) -> bytes:
        """The next bytes."""
        if size > self.left:
            raise CheckpointTruncatedError(
                f"{self.file.name}: the header needs {size} bytes for {what} at byte {self.position}, "
                f"the file ends at byte {self.file.size}"
            )
        at = self.position - self._start
        if at + size > len(self._window):
            self._start, at = self.position, 0
            self._window = self.file.read(self.position, min(max(size, _WINDOW), self.left))
        self.position += size
        return self._window[at : at + size]

    def number(self, code: str, what: str) -> Any:
        """One little-endian number."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def name(self, what: str) -> str:
        """The name of a key or tensor: short, and valid UTF-8."""
        size = self.number("Q", what)
        if size > min(self.left, MAX_NAME):
            raise CountError(f"{self.file.name}: {what} at byte {self.position} claims {size} bytes")
        try:
            return self.take(size, what).decode()
        except UnicodeDecodeError:
            raise HeaderFormatError(f"{self.file.name}: {what} before byte {self.position} is not UTF-8") from None

    def text(self, what: str) -> bytes:
        """A string of any length and content."""
        size = self.number("Q", what)
        if size > self.left:
            raise CountError(f"{self.file.name}: {what} at byte {self.position} claims {size} bytes")
        return self.take(size, what)

    def texts(self, count: int, what: str) -> list[str | bytes]:
        """Many strings, `bytes` where one is not UTF-8; a loop of its own, for vocabularies of 262144."""
        out: list[bytes] = []
        while len(out) < count:
            window, at = self._window, self.position - self._start
            last = len(window) - 8
            for _ in range(count - len(out)):
                if at > last:
                    break
                stop = at + 8 + _LENGTH(window, at)[0]
                if stop > last + 8:
                    break
                out.append(window[at + 8 : stop])
                at = stop
            self.position = self._start + at
            if len(out) < count:
                out.append(self.text(what))  # moves the window on
        try:
            return [raw.decode() for raw in out]
        except UnicodeDecodeError:
            return [_decoded(raw) for raw in out]


_LENGTH: Final = struct.Struct("<Q").unpack_from


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def read_header(file: SourceFile) -> GgufHeader:
    """Parse and check the header of an open file. Needs memory in proportion to the header's own bytes."""
    cursor = _Cursor(file)
    version, n_tensors, n_keys = _preamble(cursor)
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.name("a key")
        if key in metadata:
            raise DuplicateError(f"{file.name}: metadata key {key!r} occurs twice")
        metadata[key] = _value(cursor, cursor.number("I", f"the type of {key!r}"), key)
    alignment = _alignment(file, metadata)
    tensors = tuple(_tensor(cursor) for _ in range(n_tensors))
    return GgufHeader(version, metadata, tensors, alignment, -(-cursor.position // alignment) * alignment)


def _preamble(cursor: _Cursor) -> tuple[int, int, int]:
    """Version, number of tensors, number of keys."""
    file = cursor.file
    magic = file.start(4)
    if magic != MAGIC:
        what = "is empty" if not file.size else "does not start with GGUF's magic"
        raise NotACheckpointError(f"{file.name}: not a GGUF file: it {what}")
    cursor.take(4, "the magic")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "big-endian" if swapped in VERSIONS else f"version {version}"
        raise UnsupportedError(f"{file.name}: {why} GGUF is not supported: only little-endian versions 2 and 3 are")
    n_tensors, n_keys = cursor.number("Q", "the tensor count"), cursor.number("Q", "the key count")
    for count, smallest, what in ((n_tensors, _SMALLEST_TENSOR, "tensors"), (n_keys, _SMALLEST_KEY, "keys")):
        if count * smallest > cursor.left:
            raise CountError(f"{file.name}: the header claims {count} {what}, the file has {file.size} bytes")
    return version, n_tensors, n_keys


def _value(cursor: _Cursor, kind: int, key: str) -> Any:
    """A metadata value: a scalar, a string or a list of one of these."""
    if kind == _STRING:
        return cursor.text(f"the value of {key!r}").decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(cursor, key)
    if kind == 7:
        return _boolean(cursor, key)
    if kind not in _SCALARS:
        raise HeaderFormatError(f"{cursor.file.name}: metadata key {key!r} has unknown type {kind}")
    return cursor.number(_SCALARS[kind], f"the value of {key!r}")


def _boolean(cursor: _Cursor, key: str) -> bool:
    byte = cursor.number("B", f"the value of {key!r}")
    if byte > 1:
        raise HeaderFormatError(f"{cursor.file.name}: metadata key {key!r} is the boolean {byte}")
    return byte == 1


def _array(cursor: _Cursor, key: str) -> list[Any]:
    """An array of scalars or strings; arrays of arrays occur in no model and are refused."""
    kind, count = cursor.number("I", f"the type of {key!r}"), cursor.number("Q", f"the length of {key!r}")
    if kind != _STRING and kind not in _SCALARS:
        raise HeaderFormatError(f"{cursor.file.name}: metadata key {key!r} is an array of unknown type {kind}")
    size = 8 if kind == _STRING else struct.calcsize("<" + _SCALARS[kind])
    if count * size > cursor.left:
        raise CountError(f"{cursor.file.name}: metadata key {key!r} claims {count} values, the file ends before that")
    if kind == _STRING:
        return cursor.texts(count, f"a value of {key!r}")
    return list(struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.take(count * size, f"the values of {key!r}")))


def _alignment(file: SourceFile, metadata: dict[str, Any]) -> int:
    """general.alignment: a power of two from 8 to 65536."""
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    valid = isinstance(value, int) and not isinstance(value, bool) and 8 <= value <= MAX_ALIGNMENT
    if not valid or value & (value - 1):
        raise TensorAlignmentError(f"{file.name}: general.alignment is {value!r}, not a power of two in 8..65536")
    return int(value)


def _tensor(cursor: _Cursor) -> GgufTensor:
    """One entry of the tensor table, its shape and size checked."""
    file = cursor.file
    name = cursor.name("a tensor name")
    n_dims = cursor.number("I", f"the rank of {name!r}")
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise TensorShapeError(f"{file.name}: tensor {name!r} has {n_dims} dimensions, not 1 to {MAX_DIMENSIONS}")
    dims = [cursor.number("Q", f"the shape of {name!r}") for _ in range(n_dims)]
    number, offset = cursor.number("I", f"the type of {name!r}"), cursor.number("Q", f"the offset of {name!r}")
    values = 1
    for dim in dims:
        values *= dim
    if values > MAX_VALUES:
        raise TensorShapeError(f"{file.name}: tensor {name!r} has shape {dims}: no tensor is that large")
    kind = BY_NUMBER.get(number)
    if kind is None:
        known = OTHER_NAMES.get(number, f"number {number}")
        raise TensorTypeError(f"{file.name}: tensor {name!r} has type {known}, which is not supported for weights")
    if values == 0 or dims[0] % kind.block_size:
        raise TensorShapeError(
            f"{file.name}: tensor {name!r} has shape {dims}: {kind.name} rows are whole blocks of {kind.block_size}"
        )
    nbytes = values // kind.block_size * kind.block_bytes
    return GgufTensor(name, tuple(reversed(dims)), kind, offset, nbytes)
