"""What the machine can do: reading memory, and int8 dot products from registers. Generated code, as in a bundle.

A decode step can go no faster than its weights come in from memory; a prefill no faster than its dot products issue.
"""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from goinfer.codegen.dsl import Ptr, V, const, for_, intrinsic
from goinfer.codegen.errors import CompileError
from goinfer.codegen.host import HostCode, compile_for_host
from goinfer.codegen.kernel import define_function
from goinfer.codegen.target import Target

STREAM_BYTES = 1 << 30
_UNROLL = 8
_CHAINS = 6
_DOT_STEPS = 1 << 22


class Ceilings:
    """Compiled measuring functions. Raises CompileError on a machine that runs none of the CPU targets."""

    def __init__(self) -> None:
        self._target: Target | None = None
        code = compile_for_host(self._define)
        if code is None or self._target is None:
            raise CompileError("bench: this machine runs none of the CPU targets")
        self._code: HostCode = code
        self._stream: Any = code.function("stream", ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._dots: Any = code.function("dots", ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)

    def _define(self, module: Any, target: Target) -> None:
        self._target = target
        width = 4 * target.lanes
        define_function(module, "stream", ("ptr", "i64", "ptr"), lambda *a: _stream(width, *a))
        define_function(module, "dots", ("ptr", "i64", "ptr"), lambda *a: _dots(target, *a))

    def read_bandwidth(self, threads: int, size: int = STREAM_BYTES, repeats: int = 5) -> float:
        """GB/s at which `threads` threads read `size` bytes that no cache holds; the best of the repeats."""
        memory = _aligned(size)
        share = size // threads // 4096 * 4096
        out = np.zeros((threads, 64), np.uint8)

        def read(i: int) -> None:
            self._stream(memory.ctypes.data + i * share, share, out[i].ctypes.data)

        return max(share * threads / _seconds(read, threads) for _ in range(repeats)) / 1e9

    def dot_peak(self, threads: int, repeats: int = 5) -> float:
        """GMAC/s of int8 dot products whose operands are in registers and the first cache; the best of the repeats."""
        assert self._target is not None
        memory, out = _aligned(threads * 4096), np.zeros((threads, 64), np.uint8)

        def work(i: int) -> None:
            self._dots(memory.ctypes.data + 4096 * i, _DOT_STEPS, out[i].ctypes.data)

        products = threads * _DOT_STEPS * _CHAINS * 4 * self._target.lanes
        return max(products / _seconds(work, threads) for _ in range(repeats)) / 1e9


def _aligned(size: int) -> np.ndarray:
    """Bytes of one, at a multiple of 64: the loads are aligned ones."""
    memory = np.ones(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def _seconds(work: Any, threads: int) -> float:
    """Wall time of `work(i)` in as many threads."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0), range(threads)))  # the threads exist before the clock starts
        started = time.perf_counter()
        list(pool.map(work, range(threads)))
        return time.perf_counter() - started


def _stream(width: int, memory: Ptr, size: V, out: Ptr) -> None:
    """Combine every vector of the memory, so that none of the loads can be left out."""
    zero = const(0, ("i32", width // 4))
    with for_(0, size, width * _UNROLL, carry=[zero] * _UNROLL) as loop:
        at = memory + loop.iv
        loop.next(*[acc ^ (at + width * i).load(("i32", width // 4), width) for i, acc in enumerate(loop.args)])
    _store(loop.results, out)


def _dots(target: Target, memory: Ptr, steps: V, out: Ptr) -> None:
    """One load and _CHAINS independent dot products a step, accumulated as a matmul kernel does."""
    width = 4 * target.lanes
    byte, word = ("i8", width), ("i32", target.lanes)
    held = [(memory + 2048 + width * i).load(byte, width) for i in range(_CHAINS)]
    zero = const(0, ("i16", width // 2)) if target.dot == "maddubs" else const(0, word)
    with for_(0, steps, carry=[zero] * _CHAINS) as loop:
        weights = (memory + (loop.iv & 15) * width).load(byte, width)
        loop.next(*[_dot(target, acc, weights, a) for acc, a in zip(loop.args, held, strict=True)])
    _store(loop.results, out)


def _dot(target: Target, acc: V, weights: V, activations: V) -> V:
    if target.dot == "maddubs":
        return acc + intrinsic("llvm.x86.avx2.pmadd.ub.sw", acc.spec, weights, activations)
    if target.dot == "sdot":
        return intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.spec, acc, weights, activations)
    return intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * target.lanes}", acc.spec, acc, weights, activations)


def _store(values: list[V], out: Ptr) -> None:
    total = values[0]
    for value in values[1:]:
        total = total ^ value
    out.store(total, 1)
