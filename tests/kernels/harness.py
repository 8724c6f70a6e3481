"""Runs one kernel on numpy arrays: builds it, maps the image, fills a Step and a Ctx, calls it.

Every output starts out poisoned (NaN, or 0xA5 bytes), so a value a kernel forgets to write cannot pass as right.
"""

import ctypes
import functools
import itertools
import json
import mmap
import os
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from goinfer.bundle_format import kernel_abi as abi
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen.compile import compile_kernel
from goinfer.codegen.image import link
from goinfer.codegen.target import TARGETS, target_named
from goinfer.runtime.cpu import cpu_flags
from tests.kernels import emulator


def _here(real: str, emulated: str) -> str:
    """A target if this machine runs it, else its emulated form."""
    return real if set(TARGETS[real].needs) <= cpu_flags() else emulated


AVXVNNI, V4 = _here("x86-64-v3-avxvnni", "emulated-avxvnni"), _here("x86-64-v4-vnni", "emulated-v4-vnni")
NATIVE_TARGETS = ("x86-64-v3", AVXVNNI, V4)
"""Targets whose kernels run here, the VNNI ones in their emulated form on a machine without the instruction."""

if os.environ.get("GOINFER_REQUIRE_AARCH64") and emulator.missing() is not None:
    raise RuntimeError(f"GOINFER_REQUIRE_AARCH64 is set, and the aarch64 kernels cannot run: {emulator.missing()}")

AARCH64 = pytest.param(
    "aarch64-dotprod",
    marks=pytest.mark.skipif(emulator.missing() is not None, reason=f"aarch64 kernels: {emulator.missing()}"),
)
"""The aarch64 target, run by qemu: about 20 ms a call."""

RUNNABLE = (*NATIVE_TARGETS, AARCH64)
"""Every target whose kernels can run here."""

_allocated: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""Live memory of `aligned` by address: where the addresses in a page table lead."""


@dataclass
class Call:
    """One call of a kernel. `pointers` are arrays (or None); `counts` gives the sizes of the domains."""

    kind: str
    attrs: dict[str, Any]
    pointers: list[np.ndarray | None]
    ints: list[int] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)
    rows: int = 1
    wanted: int = 0
    att_tiles: int = 0
    domain: str = "rows"
    row_tile: int = 1
    units: int = 1

    @property
    def tiles(self) -> int:
        """Tiles of the step."""
        count = {"rows": self.rows, "att_tiles": self.att_tiles, "fixed": 1}.get(self.domain, self.wanted)
        return self.units * -(-count // self.row_tile)


def run(call: Call, target: str, splits: list[int] | None = None) -> None:
    """Run the kernel over all its tiles, cut at `splits` (tile indices) into several calls as threads would."""
    edges = [0, *(splits or []), call.tiles]
    if target_named(target).arch == "aarch64":
        _run_emulated(call, target, edges)
        return
    entry = _entry(call.kind, json.dumps(call.attrs, sort_keys=True), target)
    step, ctx = records(call, [0 if p is None else p.ctypes.data for p in call.pointers])
    for a, b in itertools.pairwise(edges):
        entry(step.ctypes.data, ctx.ctypes.data, 0, a, b)


def _run_emulated(call: Call, target: str, edges: list[int]) -> None:
    """The same through the emulator: the arrays, and the memory that arrays of addresses (u64) lead to."""
    code = image_of(call.kind, json.dumps(call.attrs, sort_keys=True), target)
    step, ctx = records(call, [])
    block = emulator.Block(len(edges) - 1)
    step_at, ctx_at = block.add(step), block.add(ctx)
    for i, array in enumerate(call.pointers):
        if array is not None:
            block.pointer(step_at + abi.STEP.fields["ptr"][1] + 8 * i, block.add(array))
    for array in [p for p in call.pointers if p is not None and p.dtype == np.uint64]:
        table = block.find(array.ctypes.data)
        for i, address in enumerate(array.reshape(-1).tolist()):
            if address:
                block.add(_owner_of(address))
                block.pointer(table + 8 * i, block.find(address))
    calls = [[0, 0, 0, a, b] for a, b in itertools.pairwise(edges)]
    for i in range(len(calls)):
        block.pointer(40 * i, step_at)
        block.pointer(40 * i + 8, ctx_at)
    emulator.call(code.code, code.exports["k"], block, calls)


def _owner_of(address: int) -> np.ndarray:
    for start, memory in _allocated.items():
        if start <= address < start + memory.nbytes:
            return memory
    raise KeyError(f"address {address:#x} lies in no array made by `aligned`")


def records(call: Call, addresses: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The Step and Ctx records of a call."""
    step, ctx = np.zeros(1, abi.STEP), np.zeros(1, abi.CTX)
    step["ptr"][0, : len(addresses)] = addresses
    step["int"][0, : len(call.ints)] = call.ints
    step["float"][0, : len(call.floats)] = call.floats
    step["domain"], step["row_tile"] = abi.DOMAINS.index(call.domain), call.row_tile
    step["units"] = call.units
    counts = {"rows": call.rows, "att_tiles": call.att_tiles, "att_wanted": call.att_tiles, "fixed": 1}
    ctx["counts"][0] = [counts.get(domain, call.wanted) for domain in abi.DOMAINS]
    ctx["threads"] = 1
    return step, ctx


@functools.cache
def image_of(kind: str, attrs: str, target: str) -> Any:
    """Compiled and linked image of one kernel (cached for the test run)."""
    spec = Kernel("k", kind, json.loads(attrs))
    return link({spec.symbol: compile_kernel(spec, target_named(target))})


@functools.cache
def _entry(kind: str, attrs: str, target: str) -> Any:
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
    return _function(image_of(kind, attrs, target), "k", signature)


def _function(image: Any, symbol: str, signature: Any) -> Any:
    """A callable of an image in memory that lives as long as the callable."""
    area = mmap.mmap(-1, len(image.code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(image.code)
    function = signature(ctypes.addressof(ctypes.c_char.from_buffer(area)) + image.exports[symbol])
    function.keep = area
    return function


def call_function(kind: str, symbol: str, target: str, arguments: list[Any]) -> None:
    """Call a function that is no kernel; arguments are arrays (their addresses are passed) or ctypes integers."""
    image = image_of(kind, "{}", target)
    if target_named(target).arch != "aarch64":
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arguments))
        _function(image, symbol, signature)(
            *[a.ctypes.data if isinstance(a, np.ndarray) else a.value for a in arguments]
        )
        return
    block = emulator.Block(1)
    numbers = [0] * 5
    for i, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            block.pointer(8 * i, block.add(argument))
        else:
            numbers[i] = argument.value
    emulator.call(image.code, image.exports[symbol], block, [numbers])


def aligned(shape: tuple[int, ...], dtype: Any, fill: Any = None) -> np.ndarray:
    """A 64-byte-aligned array; poisoned with NaN or 0xA5 unless `fill` is given."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(n + 64, np.uint8)
    raw[:] = 0xA5
    _allocated[raw.ctypes.data] = raw
    start = -raw.ctypes.data % 64
    out = raw[start : start + n].view(dtype).reshape(shape)
    if fill is not None:
        out[...] = fill
    elif np.dtype(dtype).kind == "f":
        out[...] = np.nan
    return out


def place(array: np.ndarray) -> np.ndarray:
    """An aligned copy."""
    out = aligned(array.shape, array.dtype, 0)
    out[...] = array
    return out
