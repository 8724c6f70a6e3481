"""Maps a code image read+execute, straight from the bundle's file: no linker, no copy, no temporary file."""

import ctypes
import mmap
from typing import Any

import numpy as np

from goinfer.bundle_format.reader import Bundle


class CodeImage:
    """A mapped image and its entry points. Keep it alive as long as any of its functions may run."""

    def __init__(self, bundle: Bundle, target: str, exports: dict[str, int]):
        view = bundle.section("code", target)
        try:
            self._map = mmap.mmap(
                bundle.fileno(), len(view), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC,
                offset=bundle.file_offset("code", target),
            )  # fmt: skip
        except PermissionError:
            self._map = _anonymous(view)  # the file system is mounted noexec
        self.base = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self.exports = exports

    def address(self, symbol: str) -> int:
        """Absolute address of an exported function."""
        return self.base + self.exports[symbol]

    def function(self, symbol: str, result: Any, *args: Any) -> Any:
        """A ctypes callable; the GIL is released while it runs."""
        return ctypes.CFUNCTYPE(result, *args)(self.address(symbol))


def _anonymous(code: memoryview) -> mmap.mmap:
    """Private memory holding the code, written first and only then made executable."""
    area = mmap.mmap(-1, len(code), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(code)
    address = int(np.frombuffer(area, np.uint8).ctypes.data)
    libc = ctypes.CDLL(None, use_errno=True)
    read_exec = mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), read_exec) != 0:
        raise OSError(ctypes.get_errno(), "mprotect: this system allows no executable memory")
    return area
