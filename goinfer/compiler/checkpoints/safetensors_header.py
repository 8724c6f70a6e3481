"""The header of a safetensors file, checked completely before any tensor is believed.

8 bytes of little-endian length, a JSON object {name: {dtype, shape, data_offsets}}, then the data, which the
tensors cover without overlap, hole or rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from goinfer.compiler.checkpoints.files import SourceFile, refuse_lfs_pointer
from goinfer.compiler.checkpoints.json_files import parse_object
from goinfer.compiler.errors import (
    CheckpointTruncatedError,
    CountError,
    HeaderFormatError,
    HoleError,
    OffsetError,
    OverlapError,
    TensorRangeError,
    TensorShapeError,
    TensorTypeError,
)

MAX_HEADER: Final = 100_000_000
"""The format's own cap on the JSON."""

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType({
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
})  # fmt: skip
"""Bytes of an element. Only F32, F16 and BF16 are read as weights; the others are known to check the layout."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor; `start` is its offset in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def read_header(file: SourceFile) -> tuple[StoredTensor, ...]:
    """The tensors of an open safetensors file in the order of their data, every range checked."""
    refuse_lfs_pointer(file)
    if file.size < 8:
        raise CheckpointTruncatedError(f"{file.name}: {file.size} bytes, a safetensors file has at least 8")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER:
        raise CountError(f"{file.name}: claims a header of {length} bytes: not a safetensors file")
    if file.size > 8 and file.read(8, 1) != b"{":
        raise HeaderFormatError(f"{file.name}: the header does not begin with '{{': not a safetensors file")
    if 8 + length > file.size:
        raise CheckpointTruncatedError(f"{file.name}: the header needs {8 + length} bytes, the file has {file.size}")
    entries = parse_object(file.read(8, length), file.name, HeaderFormatError)
    entries.pop("__metadata__", None)
    tensors = sorted(
        (_tensor(file, name, entry, 8 + length) for name, entry in entries.items()), key=lambda t: (t.start, t.nbytes)
    )
    _check_cover(file, tensors, 8 + length)
    return tuple(tensors)


def _tensor(file: SourceFile, name: str, entry: Any, data: int) -> StoredTensor:
    """One entry, its own fields checked against each other."""
    where = f"{file.name}: tensor {name!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HeaderFormatError(f"{where}: needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise TensorTypeError(f"{where}: unknown dtype {dtype!r}")
    if not _naturals(shape):
        raise TensorShapeError(f"{where}: shape {shape!r} is not a list of whole numbers")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise OffsetError(f"{where}: data_offsets {offsets!r} are not a range")
    nbytes = ITEM_BYTES[dtype]
    for dim in shape:
        nbytes *= dim
    if nbytes != offsets[1] - offsets[0]:
        raise TensorShapeError(
            f"{where}: {dtype} of shape {shape} takes {nbytes} bytes, data_offsets give {offsets[1] - offsets[0]}"
        )
    return StoredTensor(name, dtype, tuple(shape), data + offsets[0], nbytes)


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_cover(file: SourceFile, tensors: list[StoredTensor], data: int) -> None:
    """The tensors cover [data, end of file) exactly."""
    end, before = data, ""
    for tensor in tensors:
        if tensor.start < end:
            raise OverlapError(f"{file.name}: tensors {before!r} and {tensor.name!r} share bytes")
        if tensor.start > end:
            raise HoleError(f"{file.name}: {tensor.start - end} bytes before tensor {tensor.name!r} belong to nothing")
        end, before = tensor.start + tensor.nbytes, tensor.name
        if end > file.size:
            raise TensorRangeError(
                f"{file.name}: truncated: tensor {tensor.name!r} needs bytes up to {end}, the file has {file.size}: "
                "download it again"
            )
    if end != file.size:
        raise HoleError(f"{file.name}: {file.size - end} bytes after the last tensor belong to nothing")
