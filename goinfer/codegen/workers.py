"""Compiles many kernels in worker processes, with a cache on disk keyed by content.

The key covers the kernel's specification, the target and the toolchain (cache.py), so a cached object is the one a
fresh compile would give. With everything in the cache no worker starts.
"""

import hashlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goinfer.bundle_format.kernel_abi import MATMUL_KINDS
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import cache
from goinfer.codegen.errors import CompileError
from goinfer.codegen.messages import read_message, write_message
from goinfer.codegen.target import Target, target_named

Progress = Callable[[str, int, int], None]
"""Called with (kernel symbol, done, total)."""


@dataclass(frozen=True)
class Job:
    """One kernel for one target."""

    spec: Kernel
    target: Target

    @staticmethod
    def of(spec: Kernel, target: Target) -> "Job":
        """The job that makes the kernel: another target's, where that gives the same code."""
        return Job(spec, target_named(target.like) if target.like and spec.kind not in MATMUL_KINDS else target)

    def request(self) -> dict[str, Any]:
        """The message a worker understands."""
        return {
            "symbol": self.spec.symbol, "kind": self.spec.kind, "attrs": self.spec.attrs, "target": self.target.name,
        }  # fmt: skip

    @property
    def is_large(self) -> bool:
        """Whether it takes seconds rather than tenths: such jobs go first, so that none is left to one worker alone."""
        return self.spec.kind.startswith(("matmul", "attention"))

    def key(self) -> str:
        """Content hash of everything the object depends on."""
        text = json.dumps([self.request(), cache.toolchain()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def compile_all(jobs: list[Job], progress: Progress | None = None, workers: int = 2) -> list[bytes]:
    """Objects of the jobs, in order, equal jobs done once. Raises CompileError naming the first kernel that fails."""
    keys = [job.key() for job in jobs]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    results: dict[int, bytes] = {}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in sorted(first.values(), key=lambda i: (not jobs[i].is_large, i)):
        cached = cache.read("kernels", keys[i])
        if cached is not None:
            results[i] = cached
        else:
            todo.put(i)
    failures: list[CompileError] = []
    lock = threading.Lock()

    def done(i: int, data: bytes) -> None:
        with lock:
            results[i] = data
            if progress:
                progress(jobs[i].spec.symbol, len(results), len(first))

    threads = [
        threading.Thread(target=_drain, args=(jobs, todo, done, failures)) for _ in range(min(workers, todo.qsize()))
    ]
    for t in threads:
        t.start()
    try:
        for t in threads:
            t.join()
    except BaseException:
        failures.append(CompileError("compilation was interrupted"))  # the threads stop after their current kernel
        raise
    if failures:
        raise failures[0]
    return [results[first[key]] for key in keys]


def _drain(jobs: list[Job], todo: "queue.SimpleQueue[int]", done: Callable[[int, bytes], None],
           failures: list[CompileError]) -> None:  # fmt: skip
    """Feed one worker process until the queue is empty or something failed."""
    with subprocess.Popen(
        [sys.executable, "-m", "goinfer.codegen.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is this process's to handle; a worker ends when its input closes
    ) as process:
        assert process.stdin and process.stdout
        try:
            while not failures:
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    break
                data = _ask(process, jobs[i])
                cache.write("kernels", jobs[i].key(), data)
                done(i, data)
        except CompileError as e:
            failures.append(e)
        except Exception as e:
            failures.append(CompileError(f"compile worker: {type(e).__name__}: {e}"))
        finally:
            if process.poll() is None:
                process.stdin.close()


def _ask(process: "subprocess.Popen[bytes]", job: Job) -> bytes:
    assert process.stdin and process.stdout
    try:
        write_message(process.stdin, job.request())
        reply = read_message(process.stdout)
    except BrokenPipeError:
        reply = None
    if reply is None:
        code = process.wait()
        raise CompileError(f"kernel {job.spec.symbol} for {job.target.name}: the compile worker died (exit {code})")
    if "error" in reply:
        raise CompileError(reply["error"])
    return bytes(reply["object"])
