"""CRC32C (Castagnoli) of buffers and of memory addresses, without copies and without holding the GIL.

google-crc32c's own functions accept an ndarray (so nothing is copied) but keep the GIL unless they get
`bytes`. The C library that its extension links is therefore called through ctypes, which lets threads
check chunks side by side; where that symbol cannot be found, the package's functions are used.
"""

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview | npt.NDArray
# crc(address, byte count) -> CRC32C of that memory; a code image may supply one of its own.
AddressCrc = Callable[[int, int], int]

_CHECK_INPUT = b"123456789"
_CHECK_VALUE = 0xE3069283


def as_bytes_view(data: Buffer) -> npt.NDArray[np.uint8]:
    """The buffer's bytes as a flat uint8 array over the same memory; ValueError if it is not contiguous."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("the array is not C-contiguous")
        return data.reshape(-1).view(np.uint8)
    view = memoryview(data)
    if not view.c_contiguous:
        raise ValueError("the buffer is not contiguous")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _load_extend() -> Callable[[int, int, int], int] | None:
    try:
        from google_crc32c import _crc32c

        extend = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    extend.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
    extend.restype = ctypes.c_uint32
    probe = np.frombuffer(_CHECK_INPUT, np.uint8)
    return extend if extend(0, probe.ctypes.data, probe.size) == _CHECK_VALUE else None


def _extend_package(value: int, address: int, size: int) -> int:
    import google_crc32c

    memory = (ctypes.c_uint8 * size).from_address(address)
    return int(google_crc32c.extend(value, np.frombuffer(memoryview(memory), np.uint8)))


_extend = _load_extend() or _extend_package


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC32C of `data`, continuing from `value`: crc32c(a + b) == crc32c(b, crc32c(a))."""
    view = as_bytes_view(data)
    return _extend(value, view.ctypes.data, view.size) if view.size else value


def crc32c_at(address: int, size: int) -> int:
    """CRC32C of `size` bytes of memory at `address`, which the caller keeps alive."""
    return _extend(0, address, size) if size else 0
