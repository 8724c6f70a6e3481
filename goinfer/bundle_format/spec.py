"""Constants of the .giw file, version 1. docs/format.md states the same numbers; a test compares the two."""

from types import MappingProxyType
from typing import Final

# A first byte over 127, CR LF, ^Z and LF: a transfer that treats the file as text breaks the magic at once.
MAGIC: Final = b"\x89GIW\r\n\x1a\n"
VERSION: Final = 1
KNOWN_FLAGS: Final = 0

HEADER_SIZE: Final = 64
HEADER_STRUCT: Final = "<8sIIQQQI16sI"
INDEX_ALIGN: Final = 16

CHUNK_SIZE: Final = 4 << 20
PAGE_ALIGN: Final = 65536
SMALL_ALIGN: Final = 64
MAX_ALIGN: Final = 65536

# Bounds on what a reader accepts. They keep the memory of a reader small on a hostile file.
MAX_INDEX_SIZE: Final = 16 << 20
MAX_SECTIONS: Final = 1024
MAX_NAME_LENGTH: Final = 128
MAX_MANIFEST_SIZE: Final = 16 << 20
MAX_COMPRESSED_RAW_SIZE: Final = 256 << 20
MAX_COMPRESSION_RATIO: Final = 256
NAME_PATTERN: Final = r"[A-Za-z0-9._+/-]*"

KINDS: Final = MappingProxyType(
    {
        "manifest": 1,
        "graph": 2,
        "plan": 3,
        "tokenizer": 4,
        "chat": 5,
        "code": 6,
        "weights": 7,
        "signature": 8,
    }
)
KIND_NAMES: Final = MappingProxyType({number: name for name, number in KINDS.items()})

CODECS: Final = MappingProxyType({"none": 0, "zstd": 1})
CODEC_NAMES: Final = MappingProxyType({number: name for name, number in CODECS.items()})

# Kinds that are mapped for execution or read in place by kernels: page aligned and never compressed.
MAPPED_KINDS: Final = frozenset({"code", "weights"})

# Up to this size the weights are checked before their first use, above it by a thread beside the model.
FULL_CHECK_LIMIT: Final = 1 << 30


def smallest_align(kind: str) -> int:
    """The least alignment that a section of this kind may have."""
    return PAGE_ALIGN if kind in MAPPED_KINDS else SMALL_ALIGN


def align_up(value: int, align: int) -> int:
    """The first multiple of `align` (a power of two) that is not below `value`."""
    return (value + align - 1) & ~(align - 1)


def chunk_count(size: int) -> int:
    """How many CRC chunks a section of `size` stored bytes has; the last one may be short."""
    return -(-size // CHUNK_SIZE)
