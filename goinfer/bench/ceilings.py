"""What the machine can do: reading memory, and int8 dot products from registers. Generated code, as in a bundle.

A decode step can go no faster than its weights come in from memory; a prefill no faster than its dot products issue.
Both are what the best of several loops gets: which of them is the best differs from machine to machine. The dot
products are those of the target that is measured, so a lower target has a lower ceiling.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from goinfer.codegen.dsl import Ptr, V, bitcast, const, for_, intrinsic
from goinfer.codegen.errors import CompileError
from goinfer.codegen.host import HostCode, compile_for_host
from goinfer.codegen.kernel import define_function
from goinfer.codegen.target import Target

STREAM_BYTES = 1 << 30
STREAMS = (1, 2, 4, 8, 16, 32)
"""Places of its share of the memory that a thread reads from at once."""

PREFETCH = 2048
"""Bytes ahead of its loads that a prefetching reader asks for; each reader exists with and without it."""

CHAINS = (4, 6, 7, 8, 10, 12, 16, 20, 28)
"""Independent sums of a dot-product loop. An instruction of latency 5 that issues twice a cycle needs 10 of them."""

_VECTORS, _SUMS = 32, 8
"""Vectors that one turn of a reader's loop reads, of all its streams, and into how many sums."""

_DOT_PRODUCTS = 1 << 26
"""Dot-product instructions of one timed call: some 10 ms."""

_WEIGHTS = 32
"""Vectors of weights that the dot products take in turn; they stay in the first cache."""


class Ceilings:
    """Compiled measuring functions for one target, by default the plainest of this architecture.

    Raises CompileError on a machine that cannot run the target.
    """

    def __init__(self, target: Target | None = None) -> None:
        self._target: Target | None = target
        code = compile_for_host(self._define, wanted=target)
        if code is None or self._target is None:
            raise CompileError(f"bench: this machine runs no code for {target.name if target else 'any CPU target'}")
        self.target: Target = self._target
        self._code: HostCode = code
        args = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        self._readers = {name: code.function(name, *args) for name in _readers()}
        self._dots = {n: code.function(f"dots_{n}", *args) for n in chains_of(self.target)}

    def _define(self, module: Any, target: Target) -> None:
        self._target = target
        args = ("ptr", "i64", "ptr")
        for name, (streams, ahead) in _readers().items():
            define_function(module, name, args, lambda *a, n=streams, p=ahead: _stream(target, n, p, *a))
        for n in chains_of(target):
            define_function(module, f"dots_{n}", args, lambda *a, n=n: _dots(target, n, *a))

    def readers(self, threads: int, memory: np.ndarray, repeats: int = 3) -> dict[str, float]:
        """GB/s of every reader over memory that no cache holds; the best of the repeats of each."""
        return {name: max(self.read(threads, memory, name) for _ in range(repeats)) for name in self._readers}

    def memory(self, size: int = STREAM_BYTES) -> np.ndarray:
        """Bytes to read."""
        return _aligned(size)

    def read(self, threads: int, memory: np.ndarray, reader: str) -> float:
        """GB/s at which `threads` threads read the memory once."""
        share = memory.size // threads // 65536 * 65536
        out = np.zeros((threads, 64), np.uint8)

        def work(i: int) -> None:
            self._readers[reader](memory.ctypes.data + i * share, share, out[i].ctypes.data)

        return share * threads / _seconds(work, threads) / 1e9

    def dot_rates(self, threads: int, repeats: int = 3) -> dict[int, float]:
        """GMAC/s by number of chains; the best of the repeats of each."""
        return {n: max(self.dots(threads, n) for _ in range(repeats)) for n in self._dots}

    def dots(self, threads: int, chains: int) -> float:
        """GMAC/s of int8 dot products whose operands are in registers and the first cache."""
        memory, out = _aligned(threads * 8192), np.zeros((threads, 64), np.uint8)
        steps = _DOT_PRODUCTS // chains

        def work(i: int) -> None:
            self._dots[chains](memory.ctypes.data + 8192 * i, steps, out[i].ctypes.data)

        return threads * steps * chains * 4 * self.target.lanes / _seconds(work, threads) / 1e9


class Meter:
    """The ceilings for some threads: all loops are tried once, and from then on the best of each kind is run again."""

    def __init__(self, ceilings: Ceilings, threads: int, size: int = STREAM_BYTES) -> None:
        self._ceilings, self._threads = ceilings, threads
        self.target = ceilings.target
        self._memory = ceilings.memory(size)
        self.readers = ceilings.readers(threads, self._memory)
        self.dot_loops = ceilings.dot_rates(threads)
        self._reader, self._chains = best(self.readers), best(self.dot_loops)
        self.read_gbs, self.dot_gmacs = self.readers[self._reader], self.dot_loops[self._chains]

    def read(self) -> float:
        """GB/s now; the better of two goes."""
        value = max(self._ceilings.read(self._threads, self._memory, self._reader) for _ in range(2))
        self.read_gbs = max(self.read_gbs, value)
        return value

    def dots(self) -> float:
        """GMAC/s now; the best of three goes."""
        value = max(self._ceilings.dots(self._threads, self._chains) for _ in range(3))
        self.dot_gmacs = max(self.dot_gmacs, value)
        return value

    def as_dict(self) -> dict[str, Any]:
        """The best of the whole run, and what every loop got when all were tried."""
        return {
            "target": self.target.name,
            "read_gb_per_s": round(self.read_gbs, 2), "dot_gmac_per_s": round(self.dot_gmacs, 1),
            "readers": {name: round(rate, 2) for name, rate in self.readers.items()},
            "dot_loops": {f"{n} chains": round(rate, 1) for n, rate in self.dot_loops.items()},
        }  # fmt: skip


def chains_of(target: Target) -> list[int]:
    """Numbers of chains that fit the registers beside weights and activations."""
    held = 2 if target.dot != "maddubs" else 1  # maddubs makes products apart from the sums: more in flight anyway
    return [n for n in CHAINS if n * (3 - held) + 2 <= target.registers]


def best(rates: dict[Any, float]) -> Any:
    """The key of the highest rate."""
    return max(rates, key=lambda key: rates[key])


def _readers() -> dict[str, tuple[int, int]]:
    """Name -> (streams, bytes of prefetch)."""
    kinds = [(n, ahead) for n in STREAMS for ahead in (0, PREFETCH)]
    return {f"{n} stream{'s' * (n > 1)}{' with prefetch' * bool(ahead)}": (n, ahead) for n, ahead in kinds}


def _aligned(size: int) -> np.ndarray:
    """Bytes of one, at a multiple of 4096: the loads are aligned ones."""
    memory = np.ones(size + 4096, np.uint8)
    start = -memory.ctypes.data % 4096
    return memory[start : start + size]


def _seconds(work: Callable[[int], None], threads: int) -> float:
    """Wall time of `work(i)` in as many threads."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0), range(threads)))  # the threads exist before the clock starts
        started = time.perf_counter()
        list(pool.map(work, range(threads)))
        return time.perf_counter() - started


def _stream(target: Target, streams: int, ahead: int, memory: Ptr, size: V, out: Ptr) -> None:
    """Combine every vector of the memory, so that none of the loads can be left out."""
    width = 4 * target.lanes
    spec, part, turns = ("i32", target.lanes), size // streams, _VECTORS // streams
    with for_(0, part, width * turns, carry=[const(0, spec)] * _SUMS) as loop:
        sums = list(loop.args)
        for i in range(_VECTORS):
            place = memory + (loop.iv + part * (i // turns) + width * (i % turns))
            if ahead and width * (i % turns) % 64 == 0:
                _prefetch(place + ahead)
            sums[i % _SUMS] = sums[i % _SUMS] ^ place.load(spec, width)
        loop.next(*sums)
    _store(loop.results, out)


def _prefetch(place: Ptr) -> None:
    """Ask for a line that will be read once."""
    from mlir.dialects import llvm

    llvm.intr_prefetch(place.v, 0, 1, 1)


def _dots(target: Target, chains: int, memory: Ptr, steps: V, out: Ptr) -> None:
    """One load of weights and `chains` independent dot products a step, accumulated as a matmul kernel does.

    The sums start from different values, so that no two chains are the same to the compiler.
    """
    width = 4 * target.lanes
    byte = ("i8", width)
    plain = target.dot == "maddubs"
    spec = ("i16", width // 2) if plain else ("i32", target.lanes)
    held = [(memory + 4096 + width * i).load(byte, width) for i in range(chains if plain else 1)]
    start = [const(i, spec) for i in range(chains)]
    with for_(0, steps, carry=start) as loop:
        weights = (memory + (loop.iv & (_WEIGHTS - 1)) * width).load(byte, width)
        loop.next(*[_dot(target, acc, weights, held[i % len(held)]) for i, acc in enumerate(loop.args)])
    _store([bitcast(value, ("i32", target.lanes)) for value in loop.results], out)


def _dot(target: Target, acc: V, weights: V, activations: V) -> V:
    if target.dot == "maddubs":
        return acc + intrinsic("llvm.x86.avx2.pmadd.ub.sw", acc.spec, weights, activations)
    if target.dot == "sdot":
        return intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", acc.spec, acc, weights, activations)
    return intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * target.lanes}", acc.spec, acc, weights, activations)


def _store(values: Sequence[V], out: Ptr) -> None:
    total = values[0]
    for value in values[1:]:
        total = total ^ value
    out.store(total, 1)
