"""Opens a bundle: everything but the weights is checked before any view of the file exists."""

import contextlib
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from goinfer.bundle_format import spec
from goinfer.bundle_format.checksum import AddressCrc, crc32c
from goinfer.bundle_format.codec import check_frame, decompress
from goinfer.bundle_format.errors import (
    BundleClosedError,
    BundleError,
    BundleOpenError,
    BundleReadError,
    IndexChecksumError,
    MissingSectionError,
    PaddingError,
    TruncatedError,
    UsageError,
    shown,
)
from goinfer.bundle_format.header import Header, parse_header
from goinfer.bundle_format.index import Section, check_layout, decode_index
from goinfer.bundle_format.manifest import decode_manifest
from goinfer.bundle_format.weight_check import (
    BackgroundCheck,
    ParallelCheck,
    RangeCrc,
    checked_chunks,
    crc_of_mapping,
    crc_of_reads,
    read_fully,
)

Verify = Literal["full", "background", "off"]
_VERIFY = ("full", "background", "off")


class RawBundle:
    """An open file whose header, index and layout are valid; no section's bytes were looked at yet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = shown(path)
        self.fd, self.file_size = _open(path, self.where)
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        try:
            self.header = self._read_header()
            index = self._read(self.header.index_offset, self.header.index_size)
            if crc32c(index) != self.header.index_crc:
                raise IndexChecksumError(
                    f"damaged index: {self.where}: checksum mismatch in bytes {self.header.index_offset}.."
                    f"{self.file_size}: copy the file again"
                )
            self.sections = decode_index(index, self.where)
            self.padding = check_layout(self.sections, self.header.index_offset, self.where)
        except BaseException:
            self.close()
            raise

    def _read_header(self) -> Header:
        return parse_header(self._read(0, min(spec.HEADER_SIZE, self.file_size)), self.file_size, self.where)

    def _read(self, offset: int, size: int) -> bytes:
        # Callers have bounded `size` by the file's size.
        buffer = bytearray(size)
        read_fully(self.fd, memoryview(buffer), offset, self.where)
        return bytes(buffer)

    def check_padding(self) -> None:
        """Raise PaddingError at the first byte between sections that is not zero."""
        for start, end in self.padding:
            gap = self._read(start, end - start)
            if gap.count(0) != len(gap):
                at = start + next(i for i, byte in enumerate(gap) if byte)
                raise PaddingError(
                    f"nonzero padding: {self.where}: byte {at} in the padding {start}..{end}: the file is "
                    "damaged, copy or compile it again"
                )

    def map(self) -> mmap.mmap:
        """A read-only mapping of the whole file."""
        try:
            return mmap.mmap(self.fd, self.file_size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise TruncatedError(f"truncated file: {self.where}: it became shorter while it was opened") from error
        except OSError as error:
            raise BundleReadError(f"cannot map: {self.where}: {error.strerror}: use a local disk") from error

    def close(self) -> None:
        """Give the file descriptor back; it also goes with an object that nobody closed."""
        self.fd = -1
        self._close_fd()


class Bundle:
    """A valid bundle, mapped. Views of sections stay usable until they are dropped, even after close()."""

    def __init__(self, raw: RawBundle, mapping: mmap.mmap, path: str | os.PathLike[str]) -> None:
        self._raw = raw
        self._map: mmap.mmap | None = mapping
        # The array keeps the mapping exported, so it is dropped in close().
        self._bytes = np.frombuffer(mapping, np.uint8)
        self._by_key = {(s.kind, s.name): s for s in raw.sections}
        self._background: BackgroundCheck | None = None
        self._running: ParallelCheck | None = None
        self._manifest: dict[str, Any] = {}
        self.path = path

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        verify: Verify | None = None,
        *,
        crc: AddressCrc | None = None,
        threads: int | None = None,
        resident: bool = True,
        on_damage: Callable[[BundleError], None] | None = None,
        wait: bool = True,
    ) -> Self:
        """Open and check. Header, index, padding, manifest and every small section are always checked.

        `verify` is about the weights: "full" checks them now, "background" in a thread whose finding is
        raised by `raise_if_damaged` and `section` (and handed to `on_damage`), "off" not at all; None is full
        up to 1 GiB and background above. `resident=False` checks through reads, so that weights that are only
        checked do not count as this process's memory. `crc` replaces the CRC32C function. Without `wait` a full
        check is still running on return: until `finish_check` returned nobody may use the weights.
        """
        if verify is not None and verify not in _VERIFY:
            raise UsageError(f"unknown check: verify={verify!a}: one of {', '.join(_VERIFY)}")
        raw = RawBundle(path)
        try:
            raw.check_padding()
            bundle = cls(raw, raw.map(), path)
        except BaseException:
            raw.close()
            raise
        try:
            bundle._check_small_sections(crc)
            bundle._start_weight_check(verify, crc, threads, resident, on_damage)
            if wait:
                bundle.finish_check()
        except BaseException:
            bundle.close()
            raise
        return bundle

    # Looking things up.

    @property
    def sections(self) -> tuple[Section, ...]:
        """Every section, in file order."""
        return self._raw.sections

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as decoded JSON."""
        return self._manifest

    @property
    def targets(self) -> list[str]:
        """Names of the targets that the bundle holds code for, in file order."""
        return [s.name for s in self.sections if s.kind == "code"]

    @property
    def header(self) -> Header:
        """The header's fields."""
        return self._raw.header

    @property
    def file_size(self) -> int:
        """Bytes of the whole file."""
        return self._raw.file_size

    def has(self, kind: str, name: str = "") -> bool:
        """Whether there is such a section."""
        return (kind, name) in self._by_key

    def entry(self, kind: str, name: str = "") -> Section:
        """The section's index entry; MissingSectionError lists the names that this kind has."""
        section = self._by_key.get((kind, name))
        if section is None:
            names = [s.label for s in self.sections if s.kind == kind] or ["none of this kind"]
            raise MissingSectionError(
                f"no such section: {self._raw.where}: {kind}{'/' + name if name else ''}: there is {', '.join(names)}"
            )
        return section

    def section(self, kind: str, name: str = "") -> memoryview:
        """The section's bytes, read only: in place when stored raw, decompressed at each call otherwise."""
        self.raise_if_damaged()
        entry = self.entry(kind, name)
        view = self._view(entry)
        if entry.codec == "zstd":
            return memoryview(decompress(view, entry.raw_size, entry.label, self._raw.where))
        return view

    def file_offset(self, kind: str, name: str = "") -> int:
        """Where the section begins in the file, for callers that map it themselves."""
        return self.entry(kind, name).offset

    def fileno(self) -> int:
        """The open file, for callers that map or read parts themselves (the path may have been replaced)."""
        self._mapping()
        return self._raw.fd

    # Checking.

    def check_weights(
        self, crc: AddressCrc | None = None, *, threads: int | None = None, resident: bool = True
    ) -> None:
        """Check every chunk of the weights now; raise ChecksumError for the first that does not match."""
        ParallelCheck(self._weights(), self._range_crc(crc, resident), self._raw.where, threads).wait()

    def finish_check(self) -> None:
        """Wait for a full check that was started by `open`; raise ChecksumError for the first chunk that is wrong."""
        running, self._running = self._running, None
        if running is not None:
            running.wait()

    @property
    def background(self) -> BackgroundCheck | None:
        """The check that runs beside the model, if there is one."""
        return self._background

    def raise_if_damaged(self) -> None:
        """Raise what the background check has found; costs nothing worth counting."""
        if self._background is not None and self._background.error is not None:
            raise self._background.error

    def _weights(self) -> list[Section]:
        return [s for s in self.sections if s.kind == "weights"]

    def _range_crc(self, crc: AddressCrc | None, resident: bool) -> RangeCrc:
        self._mapping()
        if resident:
            return crc_of_mapping(self._bytes, crc)
        return crc_of_reads(self._raw.fd, self._raw.where, crc)

    def _check_small_sections(self, crc: AddressCrc | None) -> None:
        small = [s for s in self.sections if s.kind != "weights"]
        for _, error in checked_chunks(small, self._range_crc(crc, resident=True), self._raw.where, threads=1):
            if error is not None:
                raise error
        for section in small:
            if section.codec == "zstd":
                check_frame(self._view(section), section.raw_size, section.label, self._raw.where)
        self._manifest = decode_manifest(self.section("manifest"), self._raw.where)

    def _start_weight_check(
        self,
        verify: Verify | None,
        crc: AddressCrc | None,
        threads: int | None,
        resident: bool,
        on_damage: Callable[[BundleError], None] | None,
    ) -> None:
        weights = self._weights()
        if verify is None:
            small = sum(s.size for s in weights) <= spec.FULL_CHECK_LIMIT
            verify = "full" if small else "background"
        if verify == "full":
            range_crc = self._range_crc(crc, resident)
            self._running = ParallelCheck(weights, range_crc, self._raw.where, threads)
        elif verify == "background":
            # Reads, because the pages of a large model should be those that the model asks for.
            range_crc = self._range_crc(crc, resident=False)
            self._background = BackgroundCheck(weights, range_crc, self._raw.where, on_damage)

    # Mapping.

    def _mapping(self) -> mmap.mmap:
        if self._map is None:
            raise BundleClosedError(f"bundle is closed: {self._raw.where}: open it again")
        return self._map

    def _view(self, section: Section) -> memoryview:
        return memoryview(self._mapping())[section.offset : section.end]

    def close(self) -> None:
        """Stop checking and unmap, or leave the unmapping to the last view that someone still holds."""
        if self._map is None:
            return
        for check in (self._background, self._running):
            if check is not None:
                check.stop()
        mapping, self._map = self._map, None
        self._bytes = np.empty(0, np.uint8)
        # BufferError means that views of sections are in use: the mapping lives as long as they do.
        with contextlib.suppress(BufferError):
            mapping.close()
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refuse_bundle(path: str | os.PathLike[str], advice: str) -> None:
    """Raise UsageError where a checkpoint is wanted and `path` is a bundle; anything else passes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return
    try:
        found = stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(spec.MAGIC), 0) == spec.MAGIC
    finally:
        os.close(fd)
    if found:
        raise UsageError(f"{shown(path)}: is a .giw bundle already: {advice}")


def _open(path: str | os.PathLike[str], where: str) -> tuple[int, int]:
    try:
        # Without O_NONBLOCK a named pipe would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise BundleOpenError(f"no such file: {where}: check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BundleOpenError(f"cannot open: {where}: {reason}: check the path and its permissions") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        if stat.S_ISDIR(status.st_mode):
            advice = "pass a .giw file; a directory with a checkpoint becomes one with `goinfer prequant`"
            raise BundleOpenError(f"cannot open: {where}: it is a directory: {advice}")
        raise BundleOpenError(f"cannot open: {where}: it is no regular file: pass a .giw file")
    return fd, status.st_size
