"""Where a key or a value lies in the paged cache, and how it is read and written at each precision.

A page holds PAGE positions of all layers of its group. Inside a layer come the KV heads one after the other, each a
key part and a value part (sizes: kernel_abi.kv_head_bytes): keys [4 groups of 16 positions][head_dim][16], so that a
vector holds neighbouring positions of one dimension; values [64][head_dim padded to 16], so that a vector holds
neighbouring dimensions of one position. int8 ends each part with one f32 scale a position.
"""

from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import PAGE, kv_head_bytes, round_up
from goinfer.codegen.dsl import Ptr, V, convert
from goinfer.codegen.errors import CompileError

KEY_GROUP = 16
"""Positions that lie side by side in the key part."""

_ELEMENTS = {"f32": ("f32", 4), "f16": ("f16", 2), "int8": ("i8", 1)}


@dataclass(frozen=True)
class KvLayout:
    """Static offsets of one KV head inside a page."""

    head_dim: int
    dtype: str

    @property
    def width(self) -> int:
        """Bytes of a stored number."""
        return _ELEMENTS[self.dtype][1]

    @property
    def element(self) -> str:
        """Element type of a stored number."""
        return _ELEMENTS[self.dtype][0]

    @property
    def scaled(self) -> bool:
        """Whether each position carries a scale."""
        return self.dtype == "int8"

    @property
    def value_dims(self) -> int:
        """Dimensions of a stored value, padded."""
        return round_up(self.head_dim, 16)

    @property
    def key_group_bytes(self) -> int:
        """Bytes of the keys of 16 positions."""
        return self.head_dim * KEY_GROUP * self.width

    @property
    def value_row_bytes(self) -> int:
        """Bytes of the value of one position."""
        return self.value_dims * self.width

    @property
    def values(self) -> int:
        """Offset of the value part."""
        return kv_head_bytes(self.head_dim, self.dtype)[0]

    @property
    def head_bytes(self) -> int:
        """Bytes of both parts."""
        return sum(kv_head_bytes(self.head_dim, self.dtype))

    @property
    def key_scales(self) -> int:
        """Offset of the keys' scales (int8)."""
        return self.values - 4 * PAGE

    @property
    def value_scales(self) -> int:
        """Offset of the values' scales (int8)."""
        return self.head_bytes - 4 * PAGE

    def load(self, at: Ptr, lanes: int) -> V:
        """`lanes` stored numbers as f32, without their scale."""
        stored = at.load((self.element, lanes), self.width)
        return stored if self.dtype == "f32" else convert(stored, "f32")


def kv_layout(head_dim: int, dtype: str) -> KvLayout:
    """The layout of a head; raises CompileError for a precision that does not exist."""
    if dtype not in _ELEMENTS:
        raise CompileError(f"KV precision {dtype!r} is unknown; known: {', '.join(_ELEMENTS)}")
    if head_dim < 1:
        raise CompileError(f"head_dim {head_dim} is not a size; check the model's configuration")
    return KvLayout(head_dim, dtype)


def page_of(pages: Ptr, position: V) -> Ptr:
    """Address of the page that holds `position` (i64); `pages` is the slot's row of the page table."""
    return (pages + (position >> 6) * 8).load_ptr()
