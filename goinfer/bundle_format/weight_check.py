"""Compares chunks of a bundle with the index's checksums: side by side, or in a thread beside the model."""

import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterable

import numpy as np
import numpy.typing as npt

from goinfer.bundle_format import spec
from goinfer.bundle_format.checksum import AddressCrc, crc32c_at
from goinfer.bundle_format.errors import BundleError, BundleReadError, ChecksumError, TruncatedError
from goinfer.bundle_format.index import Chunk, Section

# crc of the file's bytes [offset, offset + size)
RangeCrc = Callable[[int, int], int]


def crc_of_mapping(mapped: npt.NDArray[np.uint8], crc: AddressCrc | None = None) -> RangeCrc:
    """Checksums through a mapping of the whole file: the fastest way, but the pages count as ours."""
    compute = crc or crc32c_at

    def range_crc(offset: int, size: int) -> int:
        # The array, not only its address, is held: nobody can unmap the file under a running check.
        return compute(mapped.ctypes.data + offset, size)

    return range_crc


def crc_of_reads(fd: int, where: str, crc: AddressCrc | None = None) -> RangeCrc:
    """Checksums through reads into one chunk of memory a thread: no page of the file becomes ours.

    A failing disk is a typed error here, where a mapping would kill the process.
    """
    compute = crc or crc32c_at
    local = threading.local()

    def range_crc(offset: int, size: int) -> int:
        if not hasattr(local, "buffer"):
            local.buffer = np.empty(spec.CHUNK_SIZE, np.uint8)
        view = memoryview(local.buffer)[:size]
        read_fully(fd, view, offset, where)
        return compute(local.buffer.ctypes.data, size)

    return range_crc


def read_fully(fd: int, view: memoryview, offset: int, where: str) -> None:
    """Fill `view` from the file at `offset`."""
    done = 0
    while done < len(view):
        try:
            count = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise BundleReadError(
                f"read error: {where}: at byte {offset + done}: {error.strerror}: check the disk"
            ) from error
        if count == 0:
            raise TruncatedError(f"truncated file: {where}: ended at byte {offset + done} while it was read")
        done += count


def mismatch(section: Section, chunk: Chunk, where: str) -> ChecksumError:
    """The error for a chunk whose bytes are not those that were written."""
    return ChecksumError(
        f"checksum mismatch: {where}: section {section.label}, chunk {chunk.number}, bytes "
        f"{chunk.offset}..{chunk.offset + chunk.size}: the file is damaged, copy or compile it again",
        section.label,
        chunk.number,
        chunk.offset,
        chunk.size,
    )


def checked_chunks(
    sections: Iterable[Section], range_crc: RangeCrc, where: str, threads: int | None = None
) -> Generator[tuple[Chunk, ChecksumError | None]]:
    """Every chunk in file order, with an error where it does not match. Closing ends the threads."""
    work = [(section, chunk) for section in sections for chunk in section.chunks()]

    def check(item: tuple[Section, Chunk]) -> tuple[Chunk, ChecksumError | None]:
        section, chunk = item
        same = range_crc(chunk.offset, chunk.size) == chunk.crc
        return chunk, None if same else mismatch(section, chunk, where)

    threads = min(threads or os.cpu_count() or 1, 8, len(work))
    if threads <= 1:
        yield from map(check, work)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, thread_name_prefix="giw-check")
    try:
        yield from pool.map(check, work)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class ParallelCheck:
    """Checks sections in threads that start at once; `wait` raises ChecksumError for the first chunk in the file that
    does not match. Meanwhile the caller may do what does not need the contents."""

    def __init__(
        self, sections: Iterable[Section], range_crc: RangeCrc, where: str, threads: int | None = None
    ) -> None:
        self._work = [(section, chunk) for section in sections for chunk in section.chunks()]
        self._range_crc = range_crc
        self._where = where
        self._next = itertools.count()
        self._errors: dict[int, BaseException] = {}
        count = min(threads or os.cpu_count() or 1, 8, len(self._work))
        self._threads = [threading.Thread(target=self._run, name="giw-check") for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        """Chunks in file order until one is wrong; those before it are done or in another thread's hands."""
        while not self._errors and (i := next(self._next)) < len(self._work):
            section, chunk = self._work[i]
            try:
                if self._range_crc(chunk.offset, chunk.size) != chunk.crc:
                    self._errors[i] = mismatch(section, chunk, self._where)
            except BaseException as error:  # an injected crc may raise anything: unchecked weights must not pass
                self._errors[i] = error

    def wait(self) -> None:
        """Wait for the end and raise what was found."""
        try:
            self._join()
        except BaseException:  # an interrupt: the threads must not outlive the mapping's owner
            self.stop()
            raise
        if self._errors:
            raise self._errors[min(self._errors)]

    def stop(self) -> None:
        """End early, at most after the chunks that the threads are in; nothing is raised."""
        self._next = itertools.count(len(self._work))
        self._join()

    def _join(self) -> None:
        while self._threads:
            self._threads[-1].join()
            self._threads.pop()


class BackgroundCheck:
    """Checks sections in one thread beside the running model.

    `error` is None until something is wrong; `raise_if_damaged` is cheap enough for every forward. `on_error`
    is called once, from the checking thread.
    """

    def __init__(
        self,
        sections: Iterable[Section],
        range_crc: RangeCrc,
        where: str,
        on_error: Callable[[BundleError], None] | None = None,
    ) -> None:
        self._work = [(section, chunk) for section in sections for chunk in section.chunks()]
        self._range_crc = range_crc
        self._where = where
        self._on_error = on_error
        self._stop = threading.Event()
        self._done = threading.Event()
        self.error: BundleError | None = None
        self.checked_bytes = 0
        self._thread = threading.Thread(target=self._run, name="giw-check", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._check()
        except BundleError as error:
            self.error = error
        except Exception as error:  # an injected crc may raise anything: unchecked weights must not pass
            self.error = BundleReadError(f"check failed: {self._where}: {type(error).__name__}: {error}")
        finally:
            self._done.set()
        if self.error is not None and self._on_error is not None:
            self._on_error(self.error)

    def _check(self) -> None:
        for section, chunk in self._work:
            if self._stop.is_set():
                return
            if self._range_crc(chunk.offset, chunk.size) != chunk.crc:
                raise mismatch(section, chunk, self._where)
            self.checked_bytes += chunk.size

    @property
    def finished(self) -> bool:
        """True once every chunk was checked, or one was found damaged, or `stop` was called."""
        return self._done.is_set()

    def raise_if_damaged(self) -> None:
        """Raise the error that the thread found, if it found one."""
        if self.error is not None:
            raise self.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the check and raise its error; False when the timeout passed first."""
        finished = self._done.wait(timeout)
        self.raise_if_damaged()
        return finished

    def stop(self) -> None:
        """End the check and wait for the thread, at most for the chunk it is in."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
