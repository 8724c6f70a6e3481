"""Runs aarch64 code images on another machine: qemu-aarch64 and a small static program (aarch64/runner.c).

The arrays a call reaches are copied into one block, pointers between them are listed as relocations, and after the
call the block is copied back. Needs qemu-aarch64 and aarch64-linux-gnu-gcc; `missing()` says which is not there.
"""

import atexit
import functools
import hashlib
import platform
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from goinfer.bundle_format.kernel_abi import round_up

_TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-gcc")
_POISON = 0xFF
_ARGUMENTS = 5


def missing() -> str | None:
    """Why aarch64 code cannot run here, or None."""
    absent = [] if platform.machine() == "aarch64" else [t for t in _TOOLS if shutil.which(t) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


class Block:
    """Memory handed to the emulated function: arrays with their alignment kept and poison between them."""

    def __init__(self, n_calls: int) -> None:
        self.size = round_up(8 * _ARGUMENTS * n_calls, 64)
        self.arrays: list[tuple[int, np.ndarray]] = []
        self.relocations: list[tuple[int, int]] = []

    def add(self, array: np.ndarray) -> int:
        """Offset of an array. The memory that owns it is stored, once, so that views of it stay views."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if not any(known is owner for _, known in self.arrays):
            assert owner.flags.c_contiguous
            offset = round_up(self.size, 64) + owner.ctypes.data % 64
            self.size = round_up(offset + owner.nbytes + 64, 64)
            self.arrays.append((offset, owner))
        return self.find(array.ctypes.data)

    def pointer(self, at: int, target: int) -> None:
        """The word at offset `at` shall hold the address of offset `target`."""
        self.relocations.append((at, target))

    def find(self, address: int) -> int:
        """Offset of the byte that has this address here; KeyError if no array holds it."""
        for offset, array in self.arrays:
            start = array.ctypes.data
            if start <= address < start + max(1, array.nbytes):
                return offset + address - start
        raise KeyError(f"address {address:#x} lies in none of the arrays of the call")

    def bytes(self, calls: list[list[int]]) -> bytearray:
        """The block's contents, calls first."""
        out = bytearray([_POISON]) * self.size
        for i, arguments in enumerate(calls):
            struct.pack_into(f"<{_ARGUMENTS}Q", out, 8 * _ARGUMENTS * i, *arguments)
        for offset, array in self.arrays:
            out[offset : offset + array.nbytes] = array.tobytes()
        return out

    def take_back(self, memory: bytes) -> None:
        """Copy the arrays out of the block, but not words that hold its addresses."""
        words = {at for at, _ in self.relocations}
        for offset, array in self.arrays:
            if array.flags.writeable and not any(offset <= at < offset + array.nbytes for at in words):
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(memory, np.uint8, array.nbytes, offset)


def call(code: bytes, entry: int, block: Block, calls: list[list[int]]) -> None:
    """Run code[entry](arguments) for each of `calls` and copy the arrays back. Raises on a crash of the function."""
    image = _image_file(code)
    relocations = b"".join(struct.pack("<QQ", *r) for r in block.relocations)
    head = struct.pack("<8Q", entry, len(block.relocations), len(calls), block.size, 0, 0, 0, 0)
    start = round_up(len(head) + len(relocations), 64)
    job = _folder() / "job"
    job.write_bytes((head + relocations).ljust(start, b"\0") + block.bytes(calls))
    done = subprocess.run([*_command(), str(image), str(job)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"emulated call failed with {done.returncode}: {done.stderr.strip()[-400:]}")
    block.take_back(job.read_bytes()[start:])


@functools.cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="aarch64-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _command() -> tuple[str, ...]:
    """How the runner is started; it is compiled once."""
    native = platform.machine() == "aarch64"
    runner, source = _folder() / "runner", Path(__file__).parent / "aarch64" / "runner.c"
    compiler = "cc" if native else "aarch64-linux-gnu-gcc"
    subprocess.run([compiler, "-static", "-O1", "-Wall", "-Werror", "-o", str(runner), str(source)], check=True)
    return (str(runner),) if native else ("qemu-aarch64", "-cpu", "max", str(runner))


def _image_file(code: bytes) -> Path:
    path = _folder() / hashlib.sha256(code).hexdigest()[:24]
    if not path.exists():
        path.write_bytes(code)
    return path
