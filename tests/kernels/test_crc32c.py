"""The checksum function of an image against google-crc32c and a table, for sizes around the word and the batch.

Seen red with: the bytes after the last whole word left out; the last chunks of a batch that is no multiple of three
skipped.
"""

import ctypes

import google_crc32c
import numpy as np
import pytest

from goinfer.bundle_format.kernel_abi import CRC_SYMBOL
from goinfer.codegen import reference
from tests.kernels.harness import RUNNABLE, aligned, call_function


def checksums(data: np.ndarray, chunk: int, n: int, target: str) -> list[int]:
    """The function's results for n chunks."""
    out = aligned((n + 1,), np.uint32)
    call_function("crc32c", CRC_SYMBOL, target, [data, ctypes.c_int64(chunk), ctypes.c_int64(n), out])
    assert out[n] == 0xA5A5A5A5, "wrote past the last checksum"
    return [int(x) for x in out[:n]]


@pytest.mark.parametrize("target", RUNNABLE)
def test_a_known_value(target: str) -> None:
    """The check value of the CRC catalogue."""
    text = np.frombuffer(b"123456789", np.uint8).copy()
    assert checksums(text, 9, 1, target) == [0xE3069283] == [reference.crc32c(b"123456789")]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("chunk", [0, 1, 7, 8, 9, 63, 64, 1000, 4096])
def test_chunks_of_any_size_and_number(target: str, chunk: int) -> None:
    data = aligned((chunk * 7 + 1,), np.uint8)
    data[:] = np.random.default_rng(chunk).integers(0, 256, len(data))
    want = [google_crc32c.value(data[i * chunk : (i + 1) * chunk].tobytes()) for i in range(7)]
    assert want[:2] == [reference.crc32c(data[i * chunk : (i + 1) * chunk].tobytes()) for i in range(2)]
    for n in (0, 1, 2, 3, 5, 7):
        assert checksums(data, chunk, n, target) == want[:n]


@pytest.mark.parametrize("target", RUNNABLE)
def test_an_unaligned_start(target: str) -> None:
    data = np.random.default_rng(0).integers(0, 256, 401, dtype=np.uint8)
    assert checksums(data[1:], 100, 4, target) == [
        google_crc32c.value(data[1 + i * 100 : 101 + i * 100].tobytes()) for i in range(4)
    ]
