"""Writes a bundle section by section into a sibling temp file, which takes its name only when whole."""

import contextlib
import errno
import os
import struct
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from goinfer.bundle_format import spec
from goinfer.bundle_format.checksum import Buffer, as_bytes_view, crc32c
from goinfer.bundle_format.codec import compress
from goinfer.bundle_format.errors import BundleError, WriterStateError
from goinfer.bundle_format.header import Header
from goinfer.bundle_format.index import Section, check_layout, check_section, encode_index
from goinfer.bundle_format.manifest import encode_manifest
from goinfer.bundle_format.output import Output

# Some file systems cannot fsync a directory; the rename is then as durable as they make it.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM})


class SectionStream:
    """An uncompressed section that is written piece by piece; offsets count from the section's start."""

    def __init__(self, writer: "BundleWriter", kind: str, name: str, align: int, offset: int) -> None:
        self._writer = writer
        self._kind, self._name, self._align, self._offset = kind, name, align, offset
        self._size = 0
        self._crc = 0
        self._table = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._writer._close_stream(self)
        else:
            self._writer._fail()

    def tell(self) -> int:
        """Bytes written so far: the offset that the next `write` will return."""
        return self._size

    def write(self, data: Buffer) -> int:
        """Append the buffer's bytes and return their offset in the section."""
        self._writer._check_stream(self)
        view = _bytes_of(data)
        start, at = self._size, 0
        try:
            while at < view.size:
                piece = view[at : at + spec.CHUNK_SIZE - self._size % spec.CHUNK_SIZE]
                self._writer._write(memoryview(piece))
                self._append(piece)
                at += piece.size
        except BaseException:
            # An interrupt between file and checksum must not leave a bundle whose checksums are wrong.
            self._writer._fail()
            raise
        return start

    def align(self, align: int) -> int:
        """Append zeros up to the next multiple of `align` (a power of two) and return the new offset."""
        if align < 1 or align & (align - 1) or align > self._align:
            raise WriterStateError(f"bad alignment in a section: {align}: a power of two up to {self._align} is needed")
        gap = spec.align_up(self._size, align) - self._size
        if gap:
            self.write(bytes(gap))
        return self._size

    def _append(self, piece: Any) -> None:
        self._crc = crc32c(piece, self._crc)
        self._size += piece.size
        if self._size % spec.CHUNK_SIZE == 0:
            self._end_chunk()

    def _end_chunk(self) -> None:
        self._table += struct.pack("<I", self._crc)
        self._crc = 0

    def _finish(self) -> Section:
        if self._size % spec.CHUNK_SIZE:
            self._end_chunk()
        return Section(
            self._kind,
            self._name,
            self._offset,
            self._size,
            self._size,
            "none",
            self._align,
            bytes(self._table),
        )


class BundleWriter:
    """`with BundleWriter(path) as w:` adds sections; a clean exit makes the file appear, whole, under `path`.

    Whatever raises inside the block (KeyboardInterrupt too) removes the temp file and leaves an older file of
    that name as it was. Memory: one piece of the caller's buffer at a time, plus a section being compressed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._out = Output(path, "bundle")
        self._where = self._out.where
        self._fd = -1
        self._position = 0
        self._sections: list[Section] = []
        self._stream: SectionStream | None = None
        self._failed = False
        self._open = False
        self._remover: weakref.finalize | None = None

    def __enter__(self) -> Self:
        if self._remover is not None:
            raise WriterStateError(f"writer used twice: {self._where}: make a new BundleWriter")
        try:
            self._create()
            self._write(memoryview(bytes(spec.HEADER_SIZE)))
        except BaseException:
            self._discard()
            raise
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        try:
            if error is None:
                self._commit()
        finally:
            self._discard()

    def add(self, kind: str, name: str, data: Buffer, codec: str = "none", align: int | None = None) -> None:
        """Add a whole section. `zstd` is a wish: data that it does not shrink, or too well, is stored raw."""
        view = _bytes_of(data)
        if codec not in spec.CODECS:
            raise WriterStateError(f"unknown codec: {codec!a}: one of {', '.join(spec.CODECS)}")
        packed = None
        if codec == "zstd":
            if kind in spec.MAPPED_KINDS:
                raise WriterStateError(f"section {kind} must not be compressed: pass codec='none'")
            packed = compress(view.tobytes())
        with self.stream(kind, name, align) as stream:
            stream.write(view if packed is None else packed)
        if packed is not None:
            self._sections[-1] = _as_compressed(self._sections[-1], view.size)

    def add_manifest(self, values: Mapping[str, Any]) -> None:
        """Add the manifest, which every bundle has; values are JSON types."""
        self.add("manifest", "", encode_manifest(values))

    def stream(self, kind: str, name: str, align: int | None = None) -> SectionStream:
        """Begin an uncompressed section (`with w.stream("weights", "") as s`); one at a time.

        The alignment is at least what the kind needs: 64 KiB for weights and code, 64 for the rest.
        """
        self._check_ready()
        if self._stream is not None:
            raise WriterStateError(f"section {kind} begun inside another: close the open stream first")
        if kind not in spec.KINDS:
            raise WriterStateError(f"unknown section kind: {kind!a}: one of {', '.join(spec.KINDS)}")
        if any((s.kind, s.name) == (kind, name) for s in self._sections):
            raise WriterStateError(f"section twice: {kind}/{name}: kind and name together are unique")
        align = max(align or 0, spec.smallest_align(kind))
        try:
            check_section(Section(kind, name, 0, 0, 0, "none", align, b""), self._where)
        except BundleError as error:
            raise WriterStateError(str(error)) from error
        offset = spec.align_up(self._position, align)
        self._pad_to(offset)
        self._stream = SectionStream(self, kind, name, align, offset)
        return self._stream

    # What a stream calls.

    def _check_stream(self, stream: SectionStream) -> None:
        self._check_ready()
        if self._stream is not stream:
            raise WriterStateError("write to a closed section: begin a new one")

    def _close_stream(self, stream: SectionStream) -> None:
        self._check_stream(stream)
        self._sections.append(stream._finish())
        self._stream = None

    def _fail(self) -> None:
        self._failed = True

    def _write(self, view: memoryview) -> None:
        """Append bytes to the file; any failure is final, even when the caller swallows the error."""
        try:
            at = 0
            while at < view.nbytes:
                count = os.write(self._fd, view[at:])
                at += count
                self._position += count
        except BaseException as error:
            self._failed = True
            if isinstance(error, OSError):
                raise self._out.failed(error) from error
            raise

    # Inside.

    def _check_ready(self) -> None:
        if not self._open:
            raise WriterStateError(f"writer not open: {self._where}: use it inside its `with` block")
        if self._failed:
            raise WriterStateError(f"writer has failed: {self._where}: the bundle was given up after an earlier error")

    def _pad_to(self, offset: int) -> None:
        if offset > self._position:
            self._write(memoryview(bytes(offset - self._position)))

    def _create(self) -> None:
        self._remover = weakref.finalize(self, _remove, self._out.temp)
        self._fd = self._out.create()

    def _commit(self) -> None:
        if self._failed or self._stream is not None:
            raise WriterStateError(
                f"bundle not written: {self._where}: a section failed or is still open: nothing was kept"
            )
        index_offset = spec.align_up(self._position, spec.INDEX_ALIGN)
        check_layout(self._sections, index_offset, self._where)
        index = encode_index(self._sections)
        if len(index) > spec.MAX_INDEX_SIZE:
            raise WriterStateError(f"index too large: {self._where}: {len(index)} bytes: use fewer or smaller sections")
        self._pad_to(index_offset)
        self._write(memoryview(index))
        header = Header(self._position, index_offset, len(index), crc32c(index)).pack()
        try:
            if os.pwrite(self._fd, header, 0) != len(header):
                raise OSError(errno.EIO, "short write of the header")
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)
            os.replace(self._out.temp, self._out.path)
            _sync_directory(self._out.path.parent)
        except OSError as error:
            raise self._out.failed(error) from error

    def _discard(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        if self._remover is not None:
            self._remover()


def _as_compressed(section: Section, raw_size: int) -> Section:
    return Section(
        section.kind,
        section.name,
        section.offset,
        section.size,
        raw_size,
        "zstd",
        section.align,
        section.crc_table,
    )


def _bytes_of(data: Buffer) -> Any:
    try:
        return as_bytes_view(data)
    except (ValueError, TypeError) as error:
        raise WriterStateError(f"cannot write this buffer: {error}: pass contiguous bytes") from error


def _remove(temp: Path) -> None:
    # After a commit the temp name is gone already, and a failure here must not hide the first error.
    with contextlib.suppress(OSError):
        temp.unlink()


def _sync_directory(directory: Path) -> None:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
