"""`goinfer_crc32c(base, i64 chunk_bytes, i64 n_chunks, u32 *out)`: CRC-32C of consecutive chunks of equal size.

out[i] is the checksum of bytes [i * chunk_bytes, (i + 1) * chunk_bytes), as google-crc32c computes it. The processor's
instruction takes 8 bytes but its result three cycles, so three chunks run side by side; what is left over of the
chunks runs alone. Not a kernel: a function of every image.
"""

from collections.abc import Callable
from typing import Any

from goinfer.bundle_format.kernel_abi import CRC_SYMBOL
from goinfer.codegen.dsl import Ptr, V, convert, for_, i32, intrinsic, zext
from goinfer.codegen.kernel import define_function
from goinfer.codegen.target import Target

_SIDE_BY_SIDE = 3

Update = Callable[[V, V], V]
"""(running checksum i32, the next data) -> running checksum."""


def define(module: Any, target: Target) -> None:
    """Add the function to an MLIR module."""
    eight, one = (_x86_eight, _x86_one) if target.arch == "x86_64" else (_aarch64_eight, _aarch64_one)

    def body(base: Ptr, chunk: V, n: V, out: Ptr) -> None:
        def run(first: V, count: int) -> None:
            starts = [base + (first + i) * chunk for i in range(count)]
            for i, crc in enumerate(_checksums(starts, chunk, eight, one)):
                (out + (first + i) * 4).store(crc, 4)

        whole = n // _SIDE_BY_SIDE * _SIDE_BY_SIDE
        with for_(0, whole, _SIDE_BY_SIDE) as loop:
            run(loop.iv, _SIDE_BY_SIDE)
        with for_(whole, n) as loop:
            run(loop.iv, 1)

    define_function(module, CRC_SYMBOL, ("ptr", "i64", "i64", "ptr"), body)


def _checksums(starts: list[Ptr], size: V, eight: Update, one: Update) -> list[V]:
    """Checksums of `size` bytes at each start: words of 8, then single bytes."""
    whole = size // 8 * 8
    with for_(0, whole, 8, carry=[i32(-1)] * len(starts)) as words:
        words.next(*[eight(c, (s + words.iv).load("i64")) for s, c in zip(starts, words.args, strict=True)])
    with for_(whole, size, carry=words.results) as tail:
        tail.next(*[one(c, (s + tail.iv).load("i8")) for s, c in zip(starts, tail.args, strict=True)])
    return [c ^ -1 for c in tail.results]


def _x86_eight(crc: V, data: V) -> V:
    return convert(intrinsic("llvm.x86.sse42.crc32.64.64", "i64", zext(crc, "i64"), data), "i32")


def _x86_one(crc: V, data: V) -> V:
    return intrinsic("llvm.x86.sse42.crc32.32.8", "i32", crc, data)


def _aarch64_eight(crc: V, data: V) -> V:
    return intrinsic("llvm.aarch64.crc32cx", "i32", crc, data)


def _aarch64_one(crc: V, data: V) -> V:
    return intrinsic("llvm.aarch64.crc32cb", "i32", crc, zext(data, "i32"))
