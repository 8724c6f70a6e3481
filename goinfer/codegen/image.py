"""Objects to one flat code image: sections merged, relocations resolved, exports listed. No linker at run time.

Layout: a 64-byte-aligned run of every object's allocated sections, code first, then read-only data. The image is
position independent; the runtime maps it read+execute and calls base + offset. An undefined symbol, a writable
section or a relocation kind not listed here is refused at compile time.
"""

import io
import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from goinfer.codegen.errors import CompileError

_EXEC, _ALLOC, _WRITE = 0x4, 0x2, 0x1


@dataclass(frozen=True)
class CodeImage:
    """Bytes to map and the entry points in them."""

    code: bytes
    exports: dict[str, int]

    def to_bytes(self) -> bytes:
        """For the cache."""
        return bytes(msgpack.packb([self.code, self.exports], use_bin_type=True))

    @staticmethod
    def from_bytes(data: bytes) -> "CodeImage":
        """The inverse of `to_bytes`."""
        return CodeImage(*msgpack.unpackb(data, raw=False))


@dataclass
class _Placed:
    """A section of an object with its offset in the image."""

    data: bytearray
    align: int
    executable: bool
    offset: int = 0


def link(objects: dict[str, bytes]) -> CodeImage:
    """Merge relocatable ELF objects (name -> bytes) into an image; order follows the dict. Deterministic."""
    from elftools.elf.elffile import ELFFile

    elfs = {name: ELFFile(io.BytesIO(data)) for name, data in objects.items()}
    placed = {name: _sections(name, elf) for name, elf in elfs.items()}
    size = _place([s for sections in placed.values() for s in sections.values()])
    exports: dict[str, int] = {}
    local: dict[str, dict[int, int]] = {}
    for name, elf in elfs.items():
        local[name] = _symbols(name, elf, placed[name], exports)
    image = bytearray(size)
    for name, elf in elfs.items():
        for section in elf.iter_sections():
            if section["sh_type"] in ("SHT_RELA", "SHT_REL") and section["sh_info"] in placed[name]:
                _relocate(name, elf, section, placed[name], local[name], exports)
        for s in placed[name].values():
            image[s.offset : s.offset + len(s.data)] = s.data
    return CodeImage(bytes(image), dict(sorted(exports.items())))


def _sections(name: str, elf: Any) -> dict[int, _Placed]:
    out = {}
    for i, section in enumerate(elf.iter_sections()):
        flags = section["sh_flags"]
        if not flags & _ALLOC or section["sh_size"] == 0 or section.name.startswith((".eh_frame", ".note")):
            continue
        if flags & _WRITE or section["sh_type"] == "SHT_NOBITS":
            raise CompileError(f"kernel {name}: section {section.name} is writable; an image holds no data")
        data = bytearray(section.data())
        out[i] = _Placed(data, max(1, section["sh_addralign"]), bool(flags & _EXEC))
    return out


def _place(sections: list[_Placed]) -> int:
    offset = 0
    for executable in (True, False):
        for s in (x for x in sections if x.executable == executable):
            align = max(s.align, 64)
            offset = -(-offset // align) * align
            s.offset = offset
            offset += len(s.data)
    return -(-offset // 64) * 64


def _symbols(name: str, elf: Any, placed: dict[int, _Placed], exports: dict[str, int]) -> dict[int, int]:
    """Index -> image offset of every symbol the object defines; global functions go to `exports`."""
    table = elf.get_section_by_name(".symtab")
    offsets: dict[int, int] = {}
    for i, symbol in enumerate(table.iter_symbols()):
        index = symbol["st_shndx"]
        if not isinstance(index, int) or index not in placed:
            continue
        offsets[i] = placed[index].offset + symbol["st_value"]
        if symbol["st_info"]["bind"] == "STB_GLOBAL" and symbol["st_info"]["type"] == "STT_FUNC":
            if symbol.name in exports:
                raise CompileError(f"kernel {name}: symbol {symbol.name} is defined twice")
            exports[symbol.name] = offsets[i]
    return offsets


def _relocate(name: str, elf: Any, section: Any, placed: dict[int, _Placed], local: dict[int, int],
              exports: dict[str, int]) -> None:  # fmt: skip
    where = placed[section["sh_info"]]
    table = elf.get_section(section["sh_link"])
    kinds = _X86 if elf["e_machine"] == "EM_X86_64" else _AARCH64
    for rel in section.iter_relocations():
        index = rel["r_info_sym"]
        symbol = table.get_symbol(index)
        target = local.get(index, exports.get(symbol.name))
        if target is None:
            raise CompileError(f"kernel {name}: undefined symbol {symbol.name!r}; kernels may call nothing outside")
        kind = rel["r_info_type"]
        if kind not in kinds:
            raise CompileError(f"kernel {name}: relocation type {kind} at {symbol.name!r} is not supported")
        kinds[kind](where.data, rel["r_offset"], where.offset + rel["r_offset"], target + rel["r_addend"])


def _pc32(data: bytearray, at: int, place: int, target: int) -> None:
    struct.pack_into("<i", data, at, target - place)


def _pc64(data: bytearray, at: int, place: int, target: int) -> None:
    struct.pack_into("<q", data, at, target - place)


def _patch(data: bytearray, at: int, mask: int, bits: int) -> None:
    (word,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, (word & ~mask & 0xFFFFFFFF) | (bits & mask))


def _adr_page(data: bytearray, at: int, place: int, target: int) -> None:
    """ADRP: the page distance. Images are mapped at page-aligned addresses, so image offsets stand in."""
    pages = (target >> 12) - (place >> 12)
    _patch(data, at, 0x60FFFFE0, ((pages & 3) << 29) | (((pages >> 2) & 0x7FFFF) << 5))


def _low12(shift: int) -> Any:
    def apply(data: bytearray, at: int, place: int, target: int) -> None:
        _patch(data, at, 0x003FFC00, ((target & 0xFFF) >> shift) << 10)

    return apply


def _branch26(data: bytearray, at: int, place: int, target: int) -> None:
    _patch(data, at, 0x03FFFFFF, (target - place) >> 2)


_X86 = {2: _pc32, 4: _pc32, 24: _pc64}  # R_X86_64_PC32, PLT32, PC64
_AARCH64 = {
    275: _adr_page,  # ADR_PREL_PG_HI21
    277: _low12(0),  # ADD_ABS_LO12_NC
    278: _low12(0), 284: _low12(1), 285: _low12(2), 286: _low12(3), 299: _low12(4),  # LDST8..128_ABS_LO12_NC
    282: _branch26, 283: _branch26,  # JUMP26, CALL26
    261: _pc32,  # PREL32
}  # fmt: skip
