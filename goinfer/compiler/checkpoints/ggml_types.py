"""GGML element types: number in the file, name, elements of a block, bytes of a block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class GgmlType:
    """One element type. A row is a whole number of blocks; `scales` are the byte offsets of a block's f16 scales.

    A block whose f16 scales are finite decodes to finite values; types with other scales (None) have their values
    checked instead.
    """

    number: int
    name: str
    block_size: int
    block_bytes: int
    scales: tuple[int, ...] | None = None


_TABLE: Final = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18, (0,)),
    GgmlType(3, "Q4_1", 32, 20, (0, 2)),
    GgmlType(6, "Q5_0", 32, 22, (0,)),
    GgmlType(7, "Q5_1", 32, 24, (0, 2)),
    GgmlType(8, "Q8_0", 32, 34, (0,)),
    GgmlType(10, "Q2_K", 256, 84, (80, 82)),
    GgmlType(11, "Q3_K", 256, 110, (108,)),
    GgmlType(12, "Q4_K", 256, 144, (0, 2)),
    GgmlType(13, "Q5_K", 256, 176, (0, 2)),
    GgmlType(14, "Q6_K", 256, 210, (208,)),
    GgmlType(16, "IQ2_XXS", 256, 66, (0,)),
    GgmlType(17, "IQ2_XS", 256, 74, (0,)),
    GgmlType(18, "IQ3_XXS", 256, 98, (0,)),
    GgmlType(19, "IQ1_S", 256, 50, (0,)),
    GgmlType(20, "IQ4_NL", 32, 18, (0,)),
    GgmlType(21, "IQ3_S", 256, 110, (0,)),
    GgmlType(22, "IQ2_S", 256, 82, (0,)),
    GgmlType(23, "IQ4_XS", 256, 136, (0,)),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54, (52,)),
    GgmlType(35, "TQ2_0", 256, 66, (64,)),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
)
"""Every type that can be dequantised. Integer tensors, F64 and the intermediate Q8_1 and Q8_K hold no weights."""

BY_NUMBER: Final[Mapping[int, GgmlType]] = MappingProxyType({t.number: t for t in _TABLE})
BY_NAME: Final[Mapping[str, GgmlType]] = MappingProxyType({t.name: t for t in _TABLE})

OTHER_NAMES: Final[Mapping[int, str]] = MappingProxyType({
    4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 41: "Q1_0",
})
"""Types known by name only, so that a refusal can say what it met."""
