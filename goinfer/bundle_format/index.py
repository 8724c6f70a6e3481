"""The index at the end of the file: bounded msgpack <-> frozen dataclasses, and the layout rules."""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from goinfer.bundle_format import spec
from goinfer.bundle_format.errors import (
    AlignmentError,
    BundleError,
    ChecksumTableError,
    DuplicateKeyError,
    DuplicateSectionError,
    GapError,
    IndexFormatError,
    LimitError,
    MissingKeyError,
    MissingSectionError,
    OverlapError,
    SectionNameError,
    SectionRangeError,
    SectionSizeError,
    TrailingBytesError,
    UnknownCodecError,
    UnknownKeyError,
    UnknownKindError,
)

_SECTION_KEYS = ("align", "codec", "crc", "kind", "name", "offset", "raw", "size")
_NAME = re.compile(spec.NAME_PATTERN)
_ADVICE = "compile the model again"


@dataclass(frozen=True)
class Chunk:
    """A piece of a section that has its own checksum; offset is in the file."""

    number: int
    offset: int
    size: int
    crc: int


@dataclass(frozen=True)
class Section:
    """One entry of the index. `size` is what the file holds, `raw_size` what it decompresses to."""

    kind: str
    name: str
    offset: int
    size: int
    raw_size: int
    codec: str
    align: int
    crc_table: bytes

    @property
    def label(self) -> str:
        """The name that messages use: the kind, and after a slash the name where there is one."""
        return f"{self.kind}/{self.name}" if self.name else self.kind

    @property
    def end(self) -> int:
        """File offset of the first byte after the section."""
        return self.offset + self.size

    def chunks(self) -> Iterator[Chunk]:
        """The section's chunks in file order."""
        for number, (crc,) in enumerate(struct.iter_unpack("<I", self.crc_table)):
            start = number * spec.CHUNK_SIZE
            yield Chunk(number, self.offset + start, min(spec.CHUNK_SIZE, self.size - start), crc)


def encode_index(sections: Sequence[Section]) -> bytes:
    """The index's bytes; keys are sorted, so equal sections give equal bytes."""
    entries = [
        {
            "align": s.align,
            "codec": spec.CODECS[s.codec],
            "crc": s.crc_table,
            "kind": spec.KINDS[s.kind],
            "name": s.name,
            "offset": s.offset,
            "raw": s.raw_size,
            "size": s.size,
        }
        for s in sections
    ]
    return bytes(msgpack.packb({"sections": entries}, use_bin_type=True))


def decode_index(data: bytes, where: str) -> tuple[Section, ...]:
    """The sections that `data` describes, each checked by itself; `check_layout` checks them together.

    Every map and list is judged as soon as it is complete, so memory stays within a small multiple of the
    index whatever it contains.
    """
    decoder = _Decoder(where)
    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=decoder.on_map,
            list_hook=decoder.on_list,
            ext_hook=decoder.on_ext,
            max_array_len=spec.MAX_SECTIONS,
            max_map_len=len(_SECTION_KEYS) + 1,
            max_str_len=4 * spec.MAX_NAME_LENGTH,
            max_bin_len=len(data),
            max_ext_len=0,
        )
    except BundleError:
        raise
    except msgpack.ExtraData as error:
        raise TrailingBytesError(f"trailing bytes in index: {where}: after the msgpack value: {_ADVICE}") from error
    # For bad input msgpack raises errors of its own, ValueError (UnicodeDecodeError) and OverflowError.
    except (msgpack.UnpackException, ValueError, OverflowError, RecursionError) as error:
        raise IndexFormatError(f"bad index: {where}: not valid msgpack ({_one_line(error)}): {_ADVICE}") from error
    if not isinstance(value, _Top):
        raise IndexFormatError(f"bad index: {where}: the outermost value is no map with sections: {_ADVICE}")
    return value.sections


def _one_line(error: Exception) -> str:
    return ascii(str(error) or type(error).__name__)[1:-1][:120]


@dataclass(frozen=True)
class _Top:
    sections: tuple[Section, ...]


class _Decoder:
    """Turns msgpack maps and lists into sections, or raises. Only the two shapes of the format exist."""

    def __init__(self, where: str) -> None:
        self.where = where

    def on_ext(self, code: int, data: bytes) -> Any:
        raise IndexFormatError(f"bad index: {self.where}: extension type {code}: {_ADVICE}")

    def on_list(self, items: list[Any]) -> tuple[Section, ...]:
        if not all(isinstance(item, Section) for item in items):
            raise IndexFormatError(f"bad index: {self.where}: a list holds something that is no section: {_ADVICE}")
        return tuple(items)

    def on_map(self, pairs: list[tuple[Any, Any]]) -> Section | _Top:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if key in fields:
                raise DuplicateKeyError(f"bad index: {self.where}: key {key!a} twice: {_ADVICE}")
            fields[key] = value
        if "sections" in fields:
            self._check_keys(fields, ("sections",))
            if not isinstance(fields["sections"], tuple):
                raise IndexFormatError(f"bad index: {self.where}: `sections` is no list: {_ADVICE}")
            return _Top(fields["sections"])
        self._check_keys(fields, _SECTION_KEYS)
        return self._section(fields)

    def _check_keys(self, fields: dict[str, Any], known: tuple[str, ...]) -> None:
        for key in fields:
            if key not in known:
                raise UnknownKeyError(f"bad index: {self.where}: unknown key {key!a}: upgrade goinfer")
        for key in known:
            if key not in fields:
                raise MissingKeyError(f"bad index: {self.where}: a section lacks the key {key!a}: {_ADVICE}")

    def _section(self, fields: dict[str, Any]) -> Section:
        where = self.where
        for key in ("align", "codec", "kind", "offset", "raw", "size"):
            # bool is a subclass of int, and msgpack has negative numbers: neither is a size.
            if type(fields[key]) is not int or fields[key] < 0:
                raise IndexFormatError(f"bad index: {where}: `{key}` of a section is no natural number: {_ADVICE}")
        name, table = fields["name"], fields["crc"]
        if type(name) is not str or type(table) is not bytes:
            raise IndexFormatError(f"bad index: {where}: `name` or `crc` has the wrong type: {_ADVICE}")
        if fields["kind"] not in spec.KIND_NAMES:
            raise UnknownKindError(f"bad index: {where}: section kind {fields['kind']}: upgrade goinfer")
        if fields["codec"] not in spec.CODEC_NAMES:
            raise UnknownCodecError(f"bad index: {where}: codec {fields['codec']}: upgrade goinfer")
        section = Section(
            kind=spec.KIND_NAMES[fields["kind"]],
            name=name,
            offset=fields["offset"],
            size=fields["size"],
            raw_size=fields["raw"],
            codec=spec.CODEC_NAMES[fields["codec"]],
            align=fields["align"],
            crc_table=table,
        )
        check_section(section, where)
        return section


def check_section(section: Section, where: str) -> None:
    """The rules that a section's entry meets by itself: name, alignment, sizes, codec, checksum table."""
    if len(section.name) > spec.MAX_NAME_LENGTH or not _NAME.fullmatch(section.name):
        raise SectionNameError(
            f"bad section name: {where}: {section.kind}/{section.name[:40]!a}: at most "
            f"{spec.MAX_NAME_LENGTH} of {spec.NAME_PATTERN}"
        )
    label, align = section.label, section.align
    if align & (align - 1) or not spec.smallest_align(section.kind) <= align <= spec.MAX_ALIGN:
        raise AlignmentError(
            f"bad alignment: {where}: section {label} asks for {align}: a power of two in "
            f"{spec.smallest_align(section.kind)}..{spec.MAX_ALIGN} is allowed"
        )
    if section.codec == "none":
        if section.raw_size != section.size:
            raise SectionSizeError(
                f"sizes differ: {where}: section {label} is stored raw in {section.size} bytes but states "
                f"{section.raw_size}: {_ADVICE}"
            )
    elif section.kind in spec.MAPPED_KINDS:
        raise UnknownCodecError(f"bad codec: {where}: section {label} must not be compressed: {_ADVICE}")
    elif section.raw_size > min(spec.MAX_COMPRESSED_RAW_SIZE, spec.MAX_COMPRESSION_RATIO * section.size):
        raise LimitError(
            f"section too large: {where}: {label} claims {section.raw_size} bytes out of {section.size} "
            f"compressed ones: {_ADVICE}"
        )
    if len(section.crc_table) != 4 * spec.chunk_count(section.size):
        raise ChecksumTableError(
            f"bad checksum table: {where}: section {label} of {section.size} bytes has "
            f"{len(section.crc_table)} table bytes, not {4 * spec.chunk_count(section.size)}: {_ADVICE}"
        )


def check_layout(sections: Sequence[Section], index_offset: int, where: str) -> list[tuple[int, int]]:
    """Check that sections tile the room between header and index; return the padding ranges [start, end).

    Sections stand in file order, each at the first offset after its predecessor that its alignment allows:
    no overlap, no hole to hide bytes in, and only one file for the same sections.
    """
    check_set(sections, where)
    padding: list[tuple[int, int]] = []
    position, before = spec.HEADER_SIZE, "the header"
    for section in sections:
        span = f"section {section.label} (bytes {section.offset}..{section.end})"
        if section.end > index_offset:
            raise SectionRangeError(
                f"section out of range: {where}: {span} reaches past the index at {index_offset}: {_ADVICE}"
            )
        if section.offset < position:
            raise OverlapError(
                f"sections overlap: {where}: {span} begins before the end of {before} at {position}: {_ADVICE}"
            )
        if section.offset % section.align:
            raise AlignmentError(f"bad alignment: {where}: {span} is not on a multiple of {section.align}: {_ADVICE}")
        if section.offset != spec.align_up(position, section.align):
            raise GapError(f"hole in the file: {where}: between {before} at {position} and {span}: {_ADVICE}")
        padding.append((position, section.offset))
        position, before = section.end, f"section {section.label}"
    if index_offset != spec.align_up(position, spec.INDEX_ALIGN):
        raise GapError(
            f"hole in the file: {where}: between {before} at {position} and the index at {index_offset}: {_ADVICE}"
        )
    padding.append((position, index_offset))
    return [(start, end) for start, end in padding if start < end]


def check_set(sections: Sequence[Section], where: str) -> None:
    """The rules on the set of sections: a cap on their number, no duplicates, exactly one manifest."""
    if len(sections) > spec.MAX_SECTIONS:
        raise LimitError(f"too many sections: {where}: {len(sections)}, at most {spec.MAX_SECTIONS}: {_ADVICE}")
    seen: set[tuple[str, str]] = set()
    for section in sections:
        if (section.kind, section.name) in seen:
            raise DuplicateSectionError(f"duplicate section: {where}: {section.label}: {_ADVICE}")
        seen.add((section.kind, section.name))
    manifests = [s for s in sections if s.kind == "manifest"]
    if len(manifests) != 1 or manifests[0].name:
        raise MissingSectionError(f"no manifest: {where}: exactly one section `manifest` is needed: {_ADVICE}")
    if manifests[0].raw_size > spec.MAX_MANIFEST_SIZE:
        raise LimitError(
            f"manifest too large: {where}: {manifests[0].raw_size} bytes, at most {spec.MAX_MANIFEST_SIZE}: {_ADVICE}"
        )
