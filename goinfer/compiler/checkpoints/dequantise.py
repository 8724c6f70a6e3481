"""Blocks of GGML types to float32, bit for bit what the `gguf` library computes.

The common types have their own code here, several times as fast: nibbles are taken apart eight at a time in 64-bit
words, and every step runs over a long contiguous array. The others go through the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from goinfer.compiler.checkpoints.ggml_types import BY_NAME

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

TILE_VALUES: Final = 1 << 18
"""Values decoded at once: few enough for the outer caches, many enough that the calls themselves cost nothing."""

_F16_EXPONENT: Final = np.uint16(0x7C00)
_LOW: Final = np.uint64(0x0F0F0F0F0F0F0F0F)
_ONES: Final = np.uint64(0x0101010101010101)
_THREES: Final = np.uint64(0x0303030303030303)


def dequantise(type_name: str, raw: Bytes) -> F32Array:
    """Rows of whole blocks [rows, bytes] to float32 [rows, values]. Needs about two tiles beyond the result."""
    if type_name == "F32":
        return np.ascontiguousarray(raw).view(np.float32)
    kind = BY_NAME[type_name]
    rows, columns = raw.shape[0], raw.shape[1] // kind.block_bytes * kind.block_size
    blocks = np.ascontiguousarray(raw).reshape(-1, kind.block_bytes)
    out = np.empty((len(blocks), kind.block_size), np.float32)
    decode = _DECODERS.get(type_name) or _library_decoder(type_name)
    step = max(1, TILE_VALUES // kind.block_size)
    with np.errstate(invalid="ignore", over="ignore"):  # non-finite scales are found by the caller, by name
        for start in range(0, len(blocks), step):
            decode(blocks[start : start + step], out[start : start + step])
    return out.reshape(rows, columns)


def _f16(blocks: Bytes, out: F32Array) -> None:
    halves = blocks.view(np.uint16)
    if ((halves & _F16_EXPONENT) == _F16_EXPONENT).any():  # infinities and NaNs
        out[...] = blocks.view(np.float16)
        return
    # Exponent and mantissa moved into float32's fields read as the value times 2^-112, subnormals included.
    bits = out.view(np.uint32)
    np.left_shift(halves & np.uint16(0x7FFF), np.uint32(13), out=bits, dtype=np.uint32)
    out *= np.float32(2.0**112)
    bits |= np.left_shift(halves & np.uint16(0x8000), np.uint32(16), dtype=np.uint32)


def _bf16(blocks: Bytes, out: F32Array) -> None:
    np.left_shift(blocks.view(np.uint16), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: Bytes, out: F32Array) -> None:
    out[...] = nibbles(blocks[:, 2:]).view(np.uint8)
    out -= np.float32(8)
    out *= _half(blocks, 0)


def _q4_1(blocks: Bytes, out: F32Array) -> None:
    out[...] = nibbles(blocks[:, 4:]).view(np.uint8)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: Bytes, out: F32Array) -> None:
    out[...] = five_bits(blocks[:, 2:6], blocks[:, 6:])
    out -= np.float32(16)
    out *= _half(blocks, 0)


def _q5_1(blocks: Bytes, out: F32Array) -> None:
    out[...] = five_bits(blocks[:, 4:8], blocks[:, 8:])
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q8_0(blocks: Bytes, out: F32Array) -> None:
    out[...] = blocks[:, 2:].view(np.int8)
    out *= _half(blocks, 0)


def _q4_k(blocks: Bytes, out: F32Array) -> None:
    scales, minima = k_scales(blocks)
    values = out.reshape(-1, 32)
    values[...] = nibbles(blocks[:, 16:].reshape(-1, 32)).view(np.uint8).reshape(-1, 32)
    values *= scales
    values -= minima


def _q5_k(blocks: Bytes, out: F32Array) -> None:
    scales, minima = k_scales(blocks)
    codes = nibbles(np.ascontiguousarray(blocks[:, 48:]).reshape(-1, 32)).reshape(-1, 8, 4)
    high = _words(blocks[:, 16:48])
    for i in range(8):
        codes[:, i] |= ((high >> np.uint64(i)) & _ONES) << np.uint64(4)
    values = out.reshape(-1, 32)
    values[...] = codes.view(np.uint8).reshape(-1, 32)
    values *= scales
    values -= minima


def _q6_k(blocks: Bytes, out: F32Array) -> None:
    codes = nibbles(np.ascontiguousarray(blocks[:, :128]).reshape(-1, 64)).reshape(-1, 4, 4)
    high = _words(np.ascontiguousarray(blocks[:, 128:192]).reshape(-1, 32))
    for i in range(4):
        codes[:, i] |= ((high >> np.uint64(2 * i)) & _THREES) << np.uint64(4)
    values = out.reshape(-1, 16)
    values[...] = codes.view(np.uint8).reshape(-1, 16)
    values -= np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    values *= (_half(blocks, 208) * scales).reshape(-1, 1)


def _half(blocks: Bytes, at: int) -> F32Array:
    """The f16 at byte `at` of each block, as a float32 column."""
    return f16_column(blocks, at).astype(np.float32)


def f16_column(blocks: Bytes, at: int) -> npt.NDArray[np.float16]:
    """The f16 at byte `at` of each block [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _words(part: Bytes) -> Words:
    """Bytes of each block as 64-bit words."""
    return np.ascontiguousarray(part).view(np.uint64)


def nibbles(part: Bytes) -> Words:
    """Bytes [n, b] to one byte a nibble [n, 2b], all low nibbles of a row before its high ones, as words."""
    words = _words(part)
    width = words.shape[1]
    out = np.empty((len(words), 2 * width), np.uint64)
    np.bitwise_and(words, _LOW, out=out[:, :width])
    high = np.right_shift(words, np.uint64(4), out=out[:, width:])  # never in place: the words may be the caller's
    np.bitwise_and(high, _LOW, out=high)
    return out


def five_bits(high: Bytes, low: Bytes) -> Bytes:
    """Codes of 32 values from their 32 fifth bits and their nibbles."""
    codes = nibbles(low).view(np.uint8)
    bits = np.unpackbits(np.ascontiguousarray(high), axis=1, bitorder="little")
    bits <<= np.uint8(4)
    codes |= bits
    return codes


def k_scales(blocks: Bytes) -> tuple[F32Array, F32Array]:
    """Scale and minimum of the 8 groups of 32 in each block, as columns: f16 factors times packed 6-bit numbers."""
    packed = np.ascontiguousarray(blocks[:, 4:16]).reshape(-1, 3, 4)
    first, second, third = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1).astype(np.float32)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1).astype(np.float32)
    return (_half(blocks, 0) * scales).reshape(-1, 1), (_half(blocks, 2) * minima).reshape(-1, 1)


Decoder = Callable[[Bytes, F32Array], None]

_DECODERS: Final[Mapping[str, Decoder]] = MappingProxyType({
    "F16": _f16, "BF16": _bf16,
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
    "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
})


def _library_decoder(type_name: str) -> Decoder:
    """The gguf library's dequantiser of a type."""
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType[type_name]

    def decode(blocks: Bytes, out: F32Array) -> None:
        # One long row: the library works on 16 rows at a time, which for rows of one block is slow.
        out[...] = dequantize(blocks.reshape(1, -1), kind).reshape(out.shape)

    return decode
