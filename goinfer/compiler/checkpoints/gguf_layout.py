"""Where a GGUF file's tensors lie: every range is checked against the file and the other ranges before any read."""

from __future__ import annotations

from typing import Final

from goinfer.compiler.checkpoints.files import SourceFile
from goinfer.compiler.checkpoints.gguf_header import MAGIC, GgufHeader
from goinfer.compiler.errors import HoleError, OverlapError, SplitError, TensorAlignmentError, TensorRangeError

_TAIL_LOOK: Final = 1 << 16


def check_layout(file: SourceFile, header: GgufHeader) -> None:
    """Raise the error of the first tensor, in file order, that is unaligned, out of the file or shares bytes."""
    end, before = 0, ""
    for tensor in sorted(header.tensors, key=lambda t: t.offset):
        if tensor.offset % header.alignment:
            raise TensorAlignmentError(
                f"{file.name}: tensor {tensor.name!r} starts at {tensor.offset}, "
                f"not a multiple of the alignment {header.alignment}"
            )
        if tensor.offset < end:
            raise OverlapError(f"{file.name}: tensors {before!r} and {tensor.name!r} share bytes")
        end, before = tensor.offset + tensor.nbytes, tensor.name
        if header.data_start + end > file.size:
            raise TensorRangeError(
                f"{file.name}: truncated: tensor {tensor.name!r} needs bytes up to {header.data_start + end}, "
                f"the file has {file.size}: download it again"
            )
    _check_tail(file, header, header.data_start + end if header.tensors else header.data_start)


def _check_tail(file: SourceFile, header: GgufHeader, end: int) -> None:
    """Bytes after the last tensor may only be padding."""
    padded = -(-end // header.alignment) * header.alignment
    if padded >= file.size:
        return
    tail = file.read(padded, min(_TAIL_LOOK, file.size - padded))
    if header.metadata.get("split.count", 0) or tail.startswith(MAGIC):
        raise SplitError(f"{file.name}: parts of a split model joined end to end: give the first part as it came")
    if any(tail):
        raise HoleError(f"{file.name}: {file.size - padded} bytes after the last tensor belong to nothing")
