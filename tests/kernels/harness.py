"""Runs one kernel on numpy arrays: builds it, maps the image, fills a Step and a Ctx, calls it.

Every output starts out poisoned (NaN, or 0xA5 bytes), so a value a kernel forgets to write cannot pass as right.
"""

import ctypes
import functools
import json
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from goinfer.bundle_format import kernel_abi as abi
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen.compile import compile_kernel
from goinfer.codegen.image import link
from goinfer.codegen.target import target_named

NATIVE_TARGETS = ("x86-64-v3", "emulated-avxvnni", "emulated-v4-vnni")
"""Targets whose kernels any AVX2 machine can run."""


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
        count = {"rows": self.rows, "wanted": self.wanted, "att_tiles": self.att_tiles, "fixed": 1}[self.domain]
        return self.units * -(-count // self.row_tile)


def run(call: Call, target: str, splits: list[int] | None = None) -> None:
    """Run the kernel over all its tiles, cut at `splits` (tile indices) into several calls as threads would."""
    entry = _entry(call.kind, json.dumps(call.attrs, sort_keys=True), target)
    step, ctx = records(call, [0 if p is None else p.ctypes.data for p in call.pointers])
    edges = [0, *(splits or []), call.tiles]
    for a, b in zip(edges, edges[1:], strict=False):
        entry(step.ctypes.data, ctx.ctypes.data, 0, a, b)


def records(call: Call, addresses: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The Step and Ctx records of a call."""
    step, ctx = np.zeros(1, abi.STEP), np.zeros(1, abi.CTX)
    step["ptr"][0, : len(addresses)] = addresses
    step["int"][0, : len(call.ints)] = call.ints
    step["float"][0, : len(call.floats)] = call.floats
    step["domain"], step["row_tile"] = abi.DOMAINS.index(call.domain), call.row_tile
    step["units"] = call.units
    ctx["counts"][0] = [call.rows, call.wanted, call.att_tiles, 1]
    ctx["threads"] = 1
    return step, ctx


@functools.cache
def image_of(kind: str, attrs: str, target: str) -> Any:
    """Compiled and linked image of one kernel (cached for the test run)."""
    spec = Kernel("k", kind, json.loads(attrs))
    return link({"k": compile_kernel(spec, target_named(target))})


@functools.cache
def _entry(kind: str, attrs: str, target: str) -> Any:
    code = image_of(kind, attrs, target)
    area = mmap.mmap(-1, len(code.code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code.code)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_int64
    )
    entry = signature(base + code.exports["k"])
    entry.keep = area  # type: ignore[attr-defined]
    return entry


def aligned(shape: tuple[int, ...], dtype: Any, fill: Any = None) -> np.ndarray:
    """A 64-byte-aligned array; poisoned with NaN or 0xA5 unless `fill` is given."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(n + 64, np.uint8)
    raw[:] = 0xA5
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
