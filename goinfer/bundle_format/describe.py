"""What a bundle holds, as data and as lines of text: the part of `goinfer inspect` that needs no model."""

from dataclasses import asdict, dataclass
from typing import Any

from goinfer.bundle_format.errors import shown
from goinfer.bundle_format.reader import Bundle


@dataclass(frozen=True)
class SectionInfo:
    """One section; `size` is stored bytes, `raw_size` what they decompress to."""

    section: str
    kind: str
    name: str
    offset: int
    size: int
    raw_size: int
    codec: str
    align: int
    chunks: int


@dataclass(frozen=True)
class BundleInfo:
    """Everything the file says about itself. `overhead` counts header, index and padding."""

    path: str
    version: int
    file_size: int
    index_size: int
    overhead: int
    targets: tuple[str, ...]
    sections: tuple[SectionInfo, ...]
    manifest: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        return asdict(self)

    def lines(self) -> list[str]:
        """A table of the sections, one line each, and a line of totals."""
        width = max(len("section"), *(len(s.section) for s in self.sections))
        head = f"{'section':{width}}  {'offset':>14}  {'stored':>14}  {'raw':>14}  codec  chunks"
        rows = [
            f"{s.section:{width}}  {s.offset:>14,}  {s.size:>14,}  {s.raw_size:>14,}  {s.codec:5}  {s.chunks:>6}"
            for s in self.sections
        ]
        total = f"{self.file_size:,} bytes, format version {self.version}, {self.overhead:,} bytes of layout"
        return [head, *rows, total]


def describe(bundle: Bundle) -> BundleInfo:
    """The description of an open bundle; nothing is read but its header and index."""
    sections = tuple(
        SectionInfo(
            section=s.label,
            kind=s.kind,
            name=s.name,
            offset=s.offset,
            size=s.size,
            raw_size=s.raw_size,
            codec=s.codec,
            align=s.align,
            chunks=len(s.crc_table) // 4,
        )
        for s in bundle.sections
    )
    return BundleInfo(
        path=shown(bundle.path),
        version=bundle.header.version,
        file_size=bundle.file_size,
        index_size=bundle.header.index_size,
        overhead=bundle.file_size - sum(s.size for s in sections),
        targets=tuple(bundle.targets),
        sections=sections,
        manifest=bundle.manifest,
    )
