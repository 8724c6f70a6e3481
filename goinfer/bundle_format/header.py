"""The fixed 64-byte header: bytes <-> frozen dataclass, and every rule that needs no index to check."""

import struct
from dataclasses import dataclass

from goinfer.bundle_format import spec
from goinfer.bundle_format.checksum import crc32c
from goinfer.bundle_format.errors import (
    HeaderError,
    LimitError,
    NewerVersionError,
    NotABundleError,
    SectionRangeError,
    TrailingBytesError,
    TruncatedError,
    UnsupportedFlagsError,
)

_RESERVED = bytes(16)
_CRC_OFFSET = spec.HEADER_SIZE - 4

# What people pass by mistake, and what they should do instead.
_FOREIGN = (
    (b"GGUF", "this is a GGUF checkpoint: compile it first with `goinfer prequant`"),
    (b"version https://git-lfs", "this is a Git LFS pointer: fetch the real file with `git lfs pull`"),
    (b"<", "this looks like a web page: download the file itself"),
)


@dataclass(frozen=True)
class Header:
    """The header's fields. `index_crc` covers the index; the header's own CRC is computed in `pack`."""

    file_size: int
    index_offset: int
    index_size: int
    index_crc: int
    version: int = spec.VERSION
    flags: int = 0

    def pack(self) -> bytes:
        """The 64 bytes at the start of the file."""
        fields = (
            self.version,
            self.flags,
            self.file_size,
            self.index_offset,
            self.index_size,
            self.index_crc,
        )
        body = struct.pack(spec.HEADER_STRUCT, spec.MAGIC, *fields, _RESERVED, 0)[:_CRC_OFFSET]
        return body + struct.pack("<I", crc32c(body))


def parse_header(data: bytes, actual_size: int, where: str) -> Header:
    """The header in the first bytes of a file of `actual_size` bytes, checked against itself and that size.

    The magic, the version's place and the header's checksum are the same in every future version, so a
    newer file is told apart from a damaged one.
    """
    _check_magic(data, where)
    if len(data) < spec.HEADER_SIZE:
        raise TruncatedError(
            f"truncated header: {where}: {len(data)} bytes read, {spec.HEADER_SIZE} needed: copy the file again"
        )
    _, version, flags, file_size, index_offset, index_size, index_crc, reserved, crc = struct.unpack(
        spec.HEADER_STRUCT, data[: spec.HEADER_SIZE]
    )
    if crc32c(data[:_CRC_OFFSET]) != crc:
        raise HeaderError(f"damaged header: {where}: checksum mismatch in bytes 0..63: copy the file again")
    if version > spec.VERSION:
        raise NewerVersionError(
            f"newer format in header: {where}: version {version}, this goinfer reads up to {spec.VERSION}: "
            "upgrade goinfer"
        )
    if version < 1:
        raise HeaderError(f"bad header: {where}: version {version} does not exist: compile the model again")
    if flags & ~spec.KNOWN_FLAGS:
        raise UnsupportedFlagsError(
            f"unknown flags in header: {where}: {flags & ~spec.KNOWN_FLAGS:#x}: upgrade goinfer"
        )
    if reserved != _RESERVED:
        raise HeaderError(f"bad header: {where}: reserved bytes are not zero: compile the model again")
    header = Header(file_size, index_offset, index_size, index_crc, version, flags)
    _check_sizes(header, actual_size, where)
    return header


def _check_magic(data: bytes, where: str) -> None:
    if not data:
        raise TruncatedError(f"empty file: {where}: 0 bytes read, {spec.HEADER_SIZE} needed: copy the file again")
    if data[: len(spec.MAGIC)] == spec.MAGIC[: len(data)]:
        return
    for prefix, advice in _FOREIGN:
        if data.startswith(prefix):
            raise NotABundleError(f"not a .giw bundle: {where}: wrong magic in the header: {advice}")
    if data[8:10] == b'{"':
        advice = "this is a safetensors file: compile its directory first with `goinfer prequant`"
        raise NotABundleError(f"not a .giw bundle: {where}: wrong magic in the header: {advice}")
    raise NotABundleError(
        f"not a .giw bundle: {where}: wrong magic in the header ({data[:8].hex()}): pass a file made by "
        "`goinfer prequant`"
    )


def _check_sizes(header: Header, actual_size: int, where: str) -> None:
    if actual_size < header.file_size:
        raise TruncatedError(
            f"truncated file: {where}: {actual_size} bytes, the header says {header.file_size}: copy the file again"
        )
    if actual_size > header.file_size:
        raise TrailingBytesError(
            f"trailing bytes: {where}: {actual_size - header.file_size} bytes after the end that the header "
            "states: copy the file again"
        )
    if header.index_size > spec.MAX_INDEX_SIZE:
        raise LimitError(
            f"index too large: {where}: {header.index_size} bytes, at most {spec.MAX_INDEX_SIZE}: "
            "compile the model again"
        )
    end = header.index_offset + header.index_size
    if header.index_offset < spec.HEADER_SIZE or end > header.file_size:
        raise SectionRangeError(
            f"index out of range: {where}: bytes {header.index_offset}..{end} of {header.file_size}: "
            "compile the model again"
        )
    if end < header.file_size:
        raise TrailingBytesError(
            f"trailing bytes: {where}: {header.file_size - end} bytes after the index: compile the model again"
        )
