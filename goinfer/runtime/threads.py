"""Worker threads: Python threads that enter the image's worker loop once and live there, sleeping on semaphores."""

import ctypes
import os
import threading

import numpy as np

from goinfer.bundle_format.errors import UsageError
from goinfer.bundle_format.kernel_abi import SEMAPHORE_BYTES, WORKER_SYMBOL
from goinfer.runtime.code_image import CodeImage

MAX_THREADS = 256


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Workers:
    """Threads 1..n-1 of an engine (the caller is thread 0), and the C library's addresses in its Ctx record."""

    def __init__(self, image: CodeImage, ctx: np.ndarray, threads: int):
        if not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"threads: {threads} is not between 1 and {MAX_THREADS}")
        self._ctx = ctx
        self._libc = ctypes.CDLL(None)
        self._semaphores = np.zeros(threads * SEMAPHORE_BYTES + 64, np.uint8)
        base = self._semaphores.ctypes.data
        base += -base % 64
        self._addresses = [base + i * SEMAPHORE_BYTES for i in range(threads)]
        for address in self._addresses:
            self._libc.sem_init(ctypes.c_void_p(address), 0, 0)
        ctx["threads"], ctx["semaphores"] = threads, base
        for name in ("sem_wait", "sem_post", "sched_yield"):
            ctx[name] = ctypes.cast(getattr(self._libc, name), ctypes.c_void_p).value
        ctx["spin_limit"] = 20000 if threads <= usable_cores() else 0
        body = image.function(WORKER_SYMBOL, None, ctypes.c_void_p, ctypes.c_int32)
        address = ctx.ctypes.data
        self._threads = [
            threading.Thread(target=body, args=(address, i), name=f"goinfer-{i}", daemon=True)
            for i in range(1, threads)
        ]
        for t in self._threads:
            t.start()

    def stop(self) -> None:
        """End the threads; no forward may be running."""
        self._ctx["quit"] = 1
        for address in self._addresses[1:]:
            self._libc.sem_post(ctypes.c_void_p(address))
        for t in self._threads:
            t.join()
        self._threads = []
