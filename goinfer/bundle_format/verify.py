"""`goinfer verify`: checks every byte of a bundle and reports everything wrong, not only the first."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from goinfer.bundle_format.checksum import AddressCrc
from goinfer.bundle_format.codec import decompress
from goinfer.bundle_format.errors import BundleError, ChecksumError, shown
from goinfer.bundle_format.index import Section
from goinfer.bundle_format.manifest import decode_manifest
from goinfer.bundle_format.reader import RawBundle
from goinfer.bundle_format.weight_check import checked_chunks, crc_of_reads, read_fully

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SectionReport:
    """What the check found in one section; `damaged` holds the numbers of chunks that do not match."""

    label: str
    offset: int
    size: int
    chunks: int
    damaged: tuple[int, ...]


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`. With an error in the header or index there are no sections to report."""

    path: str
    file_size: int
    sections: tuple[SectionReport, ...]
    errors: tuple[BundleError, ...]

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.errors

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each thing that is wrong."""
        return tuple(str(error) for error in self.errors)

    def raise_if_bad(self) -> None:
        """Raise the first error."""
        if self.errors:
            raise self.errors[0]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return {
            "path": self.path,
            "ok": self.ok,
            "file_size": self.file_size,
            "problems": list(self.problems),
            "sections": [
                {
                    "section": s.label,
                    "offset": s.offset,
                    "size": s.size,
                    "chunks": s.chunks,
                    "damaged_chunks": list(s.damaged),
                }
                for s in self.sections
            ],
        }


def verify(
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    crc: AddressCrc | None = None,
    threads: int | None = None,
) -> VerifyReport:
    """Check everything that the format lets one check; `progress(done, total)` counts bytes.

    The file is read, not mapped: a failing disk becomes a line of the report.
    """
    try:
        raw = RawBundle(path)
    except BundleError as error:
        return VerifyReport(shown(path), 0, (), (error,))
    try:
        errors = [*_padding(raw), *(damage := _chunks(raw, progress, crc, threads))]
        broken = {error.section for error in damage if isinstance(error, ChecksumError)}
        errors += _contents(raw, broken)
        return VerifyReport(raw.where, raw.file_size, _section_reports(raw, damage), tuple(errors))
    finally:
        raw.close()


def _padding(raw: RawBundle) -> list[BundleError]:
    try:
        raw.check_padding()
    except BundleError as error:
        return [error]
    return []


def _chunks(
    raw: RawBundle, progress: Progress | None, crc: AddressCrc | None, threads: int | None
) -> list[BundleError]:
    done, total = 0, sum(s.size for s in raw.sections)
    found: list[BundleError] = []
    try:
        walk = checked_chunks(raw.sections, crc_of_reads(raw.fd, raw.where, crc), raw.where, threads)
        with contextlib.closing(walk) as checked:
            for chunk, error in checked:
                done += chunk.size
                if error is not None:
                    found.append(error)
                if progress is not None:
                    progress(done, total)
    except BundleError as error:
        # A read that failed: what lies after it was not checked, and the error says so by being there.
        found.append(error)
    return found


def _contents(raw: RawBundle, broken: set[str]) -> list[BundleError]:
    """What intact sections hold: zstd frames that decompress, a manifest that parses."""
    found: list[BundleError] = []
    for section in raw.sections:
        if section.label in broken or (section.codec == "none" and section.kind != "manifest"):
            continue
        try:
            data = _read_section(raw, section)
            if section.kind == "manifest":
                decode_manifest(data, raw.where)
        except BundleError as error:
            found.append(error)
    return found


def _read_section(raw: RawBundle, section: Section) -> memoryview:
    # The size is bounded by the file's, and `empty` does not touch the pages before they are read.
    view = np.empty(section.size, np.uint8).data
    read_fully(raw.fd, view, section.offset, raw.where)
    if section.codec == "zstd":
        return memoryview(decompress(view, section.raw_size, section.label, raw.where))
    return view


def _section_reports(raw: RawBundle, damage: list[BundleError]) -> tuple[SectionReport, ...]:
    numbers: dict[str, list[int]] = {}
    for error in damage:
        if isinstance(error, ChecksumError):
            numbers.setdefault(error.section, []).append(error.chunk)
    return tuple(
        SectionReport(s.label, s.offset, s.size, len(s.crc_table) // 4, tuple(numbers.get(s.label, ())))
        for s in raw.sections
    )
