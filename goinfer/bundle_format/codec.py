"""Compression of small sections with zstd, bounded on both sides."""

import zstandard

from goinfer.bundle_format import spec
from goinfer.bundle_format.errors import CompressionError

_LEVEL = 12
_ADVICE = "compile the model again"


def compress(data: bytes) -> bytes | None:
    """One zstd frame with its content size, or None where a reader would refuse it or it saves nothing."""
    if len(data) > spec.MAX_COMPRESSED_RAW_SIZE:
        return None
    packed = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True, write_checksum=False).compress(data)
    if len(packed) >= len(data) or len(data) > spec.MAX_COMPRESSION_RATIO * len(packed):
        return None
    return packed


def check_frame(data: memoryview, raw_size: int, label: str, where: str) -> None:
    """Check the frame's header without decompressing: it must state exactly the size of the index."""
    try:
        parameters = zstandard.get_frame_parameters(bytes(data[:18]))
    except zstandard.ZstdError as error:
        raise CompressionError(f"bad zstd frame: {where}: section {label}: {_ADVICE}") from error
    if parameters.content_size != raw_size:
        raise CompressionError(f"bad zstd frame: {where}: section {label} does not state {raw_size} bytes: {_ADVICE}")


def decompress(data: memoryview, raw_size: int, label: str, where: str) -> bytes:
    """The section's raw bytes. Memory is bounded by `raw_size`, which the index check has bounded."""
    check_frame(data, raw_size, label, where)
    try:
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=raw_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CompressionError(f"bad zstd frame: {where}: section {label} does not decompress: {_ADVICE}") from error
    if len(raw) != raw_size:
        raise CompressionError(f"bad zstd frame: {where}: section {label} has {len(raw)} bytes: {_ADVICE}")
    return bytes(raw)
