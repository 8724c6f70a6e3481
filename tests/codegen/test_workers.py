"""The compile pool: typed errors that name the kernel, a dead worker, a damaged cache, Ctrl-C.

Seen red with: the digest of a cache entry not compared; workers in the parent's process group (Ctrl-C printed their
tracebacks); a dead worker's empty reply taken for an object.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import workers
from goinfer.codegen.errors import CompileError
from goinfer.codegen.messages import write_message
from goinfer.codegen.target import TARGETS, target_named
from goinfer.codegen.workers import Job, compile_all
from tests.conftest import native_target

GOOD = Kernel("argmax", "argmax", {})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOINFER_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def jobs(*specs: Kernel) -> list[Job]:
    return [Job(spec, target_named(native_target())) for spec in specs]


def test_objects_come_in_order_and_again_from_the_cache(own_cache: Path) -> None:
    work = [Job(GOOD, t) for t in TARGETS.values()]
    first = compile_all(work)
    assert all(data[:4] == b"\x7fELF" for data in first) and len(set(first)) > 1
    assert len(list(own_cache.iterdir())) == len(work)
    calls: list[str] = []
    assert compile_all(work, lambda name, *_: calls.append(name)) == first
    assert not calls, "everything came from the cache"


def test_a_damaged_cache_entry_is_compiled_again(own_cache: Path) -> None:
    (data,) = compile_all(jobs(GOOD))
    (entry,) = own_cache.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"\x00\x01")
    assert compile_all(jobs(GOOD)) == [data]


def test_an_unknown_kind_names_the_kernel() -> None:
    with pytest.raises(CompileError, match="kernel odd: kernel kind 'odd' is unknown"):
        compile_all(jobs(Kernel("odd", "odd", {})))


def test_a_worker_that_dies_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fatal error inside LLVM looks like from outside: the process is gone, no reply."""
    dying = "import sys, os; sys.stdin.buffer.read(4); os.abort()"
    real = subprocess.Popen
    monkeypatch.setattr(
        workers.subprocess, "Popen", lambda _args, **kw: real([sys.executable, "-c", dying], **kw)
    )
    with pytest.raises(CompileError, match=r"kernel argmax for .*: the compile worker died \(exit -6\)"):
        compile_all(jobs(GOOD))


def test_ctrl_c_is_quiet_and_prompt(tmp_path: Path) -> None:
    """SIGINT to the whole process group, as a terminal sends it, while kernels compile."""
    code = (
        "from goinfer.codegen.workers import *; from goinfer.codegen.target import TARGETS\n"
        "from goinfer.bundle_format.plan import Kernel\n"
        "specs = [Kernel(f'm{i}', 'matmul', {'format': 'int4', 'epilogue': 'store', 'bias': False, 'domain': 'rows'})"
        " for i in range(40)]\n"
        "print('go', flush=True)\n"
        "try:\n    compile_all([Job(s, t) for s in specs for t in TARGETS.values()])\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None and process.stdout.readline() == "go\n"
    time.sleep(1.0)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "interrupted\n" and err == "", (out, err)


def test_a_worker_whose_parent_is_gone_ends_quietly() -> None:
    """It was interrupted in the middle of a kernel. Seen red: a traceback about a broken pipe."""
    process = subprocess.Popen(
        [sys.executable, "-m", "goinfer.codegen.worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    write_message(process.stdin, jobs(GOOD)[0].request())
    process.stdin.close()
    assert process.stderr.read() == b"" and process.wait(timeout=60) == 0


def test_equal_jobs_are_done_once(own_cache: Path) -> None:
    """A kernel without dot products of two targets that are alike but for these. Seen red without the sharing."""
    seen: list[tuple[str, int, int]] = []
    work = [Job.of(GOOD, target_named(name)) for name in ("x86-64-v3", "x86-64-v3-avxvnni", "x86-64-v4-vnni")]
    objects = compile_all(work, lambda *progress: seen.append(progress))
    assert objects[0] == objects[1] != objects[2]
    assert [total for _, _, total in seen] == [2, 2]
