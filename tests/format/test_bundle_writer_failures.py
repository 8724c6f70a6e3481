"""A bundle appears whole or not at all: full disks, interrupts, errors in the block, misuse."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from goinfer.bundle_format import spec
from goinfer.bundle_format.errors import BundleError, DiskFullError, LimitError, OutputError, WriterStateError
from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.writer import BundleWriter


def files(directory):
    return sorted(p.name for p in directory.iterdir())


def failing_write(monkeypatch, after, code):
    """os.write works for `after` bytes, writes part of a call, then fails with `code`."""
    real, left = os.write, [after]

    def write(fd, data):
        if left[0] <= 0:
            raise OSError(code, os.strerror(code))
        count = real(fd, memoryview(data)[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)


# A limit inside the header, the manifest, the padding, the weights, and the index.
@pytest.mark.parametrize("after", [0, 10, 65, 1000, 70000, 65536 + 100000])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_disk_full(tmp_path, monkeypatch, after, code):
    failing_write(monkeypatch, after, code)
    with (
        pytest.raises(DiskFullError, match=r"no room for the bundle: .*m\.giw") as caught,
        BundleWriter(tmp_path / "m.giw") as w,
    ):
        w.add_manifest({})
        with w.stream("weights", "") as s:
            s.write(bytes(100000))
    assert "\n" not in str(caught.value) and files(tmp_path) == []


def test_real_file_size_limit(tmp_path):
    script = f"""
        import resource
        from goinfer.bundle_format.errors import DiskFullError
        from goinfer.bundle_format.writer import BundleWriter
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            with BundleWriter({str(tmp_path / "m.giw")!r}) as w:
                w.add_manifest({{}})
                w.add("weights", "", bytes(1_000_000))
        except DiskFullError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "no room for the bundle" in done.stdout and done.stderr == ""
    assert files(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 200_000


def test_io_error_is_typed(tmp_path, monkeypatch):
    failing_write(monkeypatch, 100, errno.EIO)
    with pytest.raises(OutputError, match="cannot write") as caught, BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        w.add("plan", "", bytes(1000))
    assert type(caught.value) is OutputError and files(tmp_path) == []


@pytest.mark.parametrize("name", ["fsync", "replace", "pwrite", "close"])
def test_failure_in_the_last_steps(tmp_path, monkeypatch, name):
    def fail(*args):
        if name == "close":
            real(*args)
        raise OSError(errno.ENOSPC, "No space left on device")

    real = getattr(os, name)
    with pytest.raises(DiskFullError), BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        monkeypatch.setattr(os, name, fail)
    monkeypatch.undo()
    assert files(tmp_path) == []


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, memoryview(data)[:777]))
    with BundleWriter(tmp_path / "m.giw") as w:
        w.add("weights", "", bytes(range(256)) * 100)
        w.add_manifest({})
    monkeypatch.undo()
    with Bundle.open(tmp_path / "m.giw") as b:
        assert bytes(b.section("weights")) == bytes(range(256)) * 100


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, MemoryError, GeneratorExit])
def test_error_in_the_block_keeps_an_older_file(tmp_path, error):
    path = tmp_path / "m.giw"
    path.write_bytes(b"older")
    with pytest.raises(error), BundleWriter(path) as w:
        w.add_manifest({})
        with w.stream("weights", "") as s:
            s.write(bytes(100))
            raise error
    assert files(tmp_path) == ["m.giw"] and path.read_bytes() == b"older"


def test_interrupt_at_every_system_call_of_the_writer(tmp_path, monkeypatch):
    """KeyboardInterrupt out of the n-th call, before or after it took effect, for every n until none is left."""
    names = ("open", "write", "pwrite", "fsync", "close", "replace")
    for late in (False, True):
        for n in range(100):
            left = [n]

            def wrap(real, late=late, left=left):
                def call(*args, **kwargs):
                    left[0] -= 1
                    if left[0] == -1 and not late:
                        raise KeyboardInterrupt
                    result = real(*args, **kwargs)
                    if left[0] == -1:
                        raise KeyboardInterrupt
                    return result

                return call

            with monkeypatch.context() as patch:
                for name in names:
                    patch.setattr(os, name, wrap(getattr(os, name)))
                try:
                    with BundleWriter(tmp_path / "m.giw") as w:
                        w.add_manifest({})
                        w.add("plan", "", bytes(10))
                    interrupted = False
                except KeyboardInterrupt:
                    interrupted = True
            left_over = files(tmp_path)
            # After the rename the file is whole, whatever happens then.
            assert left_over in ([], ["m.giw"])
            if left_over:
                Bundle.open(tmp_path / "m.giw").close()
                (tmp_path / "m.giw").unlink()
            if not interrupted:
                break
        assert n > 8


def test_interrupt_while_the_block_is_entered(tmp_path, monkeypatch):
    """The caller still holds the writer, so only the writer itself can clean up."""

    def interrupt(fd, data):
        raise KeyboardInterrupt

    writer = BundleWriter(tmp_path / "m.giw")
    monkeypatch.setattr(os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.__enter__()
    monkeypatch.undo()
    assert files(tmp_path) == []


def test_file_is_durable_before_its_name_and_then_the_name(tmp_path, monkeypatch):
    calls = []

    def record(name):
        real = getattr(os, name)

        def call(first, *rest):
            directory = name == "fsync" and stat.S_ISDIR(os.fstat(first).st_mode)
            calls.append("fsync directory" if directory else name)
            return real(first, *rest)

        monkeypatch.setattr(os, name, call)

    with BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        for name in ("pwrite", "fsync", "replace"):
            record(name)
    assert calls == ["pwrite", "fsync", "replace", "fsync directory"]


def test_real_ctrl_c(tmp_path):
    script = f"""
        from goinfer.bundle_format.writer import BundleWriter
        with BundleWriter({str(tmp_path / "m.giw")!r}) as w:
            w.add_manifest({{}})
            with w.stream("weights", "") as s:
                print("writing", flush=True)
                while True:
                    s.write(bytes(10_000))
                    if s.tell() > 1 << 30:
                        break
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.05)
    assert len(files(tmp_path)) == 1 and files(tmp_path)[0].endswith(".part")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in err
    assert files(tmp_path) == []


def test_swallowed_error_does_not_make_a_bundle(tmp_path, monkeypatch):
    with pytest.raises(WriterStateError, match="bundle not written"), BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        with monkeypatch.context() as patch:
            failing_write(patch, 10, errno.ENOSPC)
            with pytest.raises(DiskFullError):
                w.add("plan", "", bytes(100))
        with pytest.raises(WriterStateError, match="writer has failed"):
            w.add("chat", "", b"")
    assert files(tmp_path) == []


def test_swallowed_interrupt_between_file_and_checksum(tmp_path, monkeypatch):
    with pytest.raises(WriterStateError), BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        with w.stream("weights", "") as s:
            with monkeypatch.context() as patch:
                patch.setattr(
                    "goinfer.bundle_format.writer.crc32c", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)
                )
                with pytest.raises(KeyboardInterrupt):
                    s.write(b"abc")
            s.write(b"def")
    assert files(tmp_path) == []


def test_open_stream_does_not_make_a_bundle(tmp_path):
    with pytest.raises(WriterStateError, match="still open"), BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        w.stream("weights", "").write(b"abc")
    assert files(tmp_path) == []


def test_bundle_without_manifest(tmp_path):
    with pytest.raises(BundleError, match="no manifest"), BundleWriter(tmp_path / "m.giw") as w:
        w.add("plan", "", b"x")
    assert files(tmp_path) == []


def test_too_many_sections(tmp_path, monkeypatch):
    monkeypatch.setattr(spec, "MAX_SECTIONS", 2)
    with pytest.raises(LimitError, match="3, at most 2"), BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        w.add("plan", "a", b"")
        w.add("plan", "b", b"")
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda w: w.add("recipe", "", b""), "unknown section kind"),
        (lambda w: w.add("plan", "a b", b""), "bad section name"),
        (lambda w: w.add("plan", "x" * 129, b""), "bad section name"),
        (lambda w: w.add("plan", "", b"", "lz4"), "unknown codec"),
        (lambda w: w.add("weights", "", b"", "zstd"), "must not be compressed"),
        (lambda w: w.add("plan", "", b"", "none", 96), "asks for 96"),
        (lambda w: w.add("plan", "", b"", "none", 1 << 20), "asks for 1048576"),
        (lambda w: w.add("plan", "", np.zeros((4, 4))[:, 1]), "contiguous"),
        (lambda w: w.add("plan", "", "text"), "buffer"),
        (lambda w: [w.add("plan", "", b""), w.add("plan", "", b"")], "section twice: plan/"),
        (lambda w: [w.stream("plan", ""), w.stream("chat", "")], "inside another"),
        (lambda w: w.stream("plan", "").align(48), "bad alignment"),
        (lambda w: w.stream("plan", "").align(128), "bad alignment"),
        (lambda w: w.add_manifest({"a": float("nan")}), "bad manifest value"),
        (lambda w: w.add_manifest({"a": b"bytes"}), "bad manifest value"),
        (lambda w: w.add_manifest({"a": "\ud800"}), "bad manifest value"),
        (lambda w: w.__enter__(), "used twice"),
    ],
)
def test_misuse(tmp_path, misuse, words):
    with pytest.raises(WriterStateError, match=words) as caught, BundleWriter(tmp_path / "m.giw") as w:
        misuse(w)
    assert "\n" not in str(caught.value) and files(tmp_path) == []


def test_write_to_a_closed_stream_and_a_closed_writer(tmp_path):
    with BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        with w.stream("plan", "") as s:
            s.write(b"x")
        with pytest.raises(WriterStateError, match="closed section"):
            s.write(b"y")
    with pytest.raises(WriterStateError, match="not open"):
        w.add("chat", "", b"")
    Bundle.open(tmp_path / "m.giw").close()


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "none" / "m.giw", tmp_path / "file" / "m.giw", "/dev/null", f"{tmp_path}/a\0b"):
        with pytest.raises(OutputError, match="cannot write") as caught, BundleWriter(path):
            raise AssertionError("entered")
        assert "\n" not in str(caught.value)
    assert files(tmp_path) == ["file"]


def test_very_long_name(tmp_path):
    path = tmp_path / ("n" * 250 + ".giw")
    with BundleWriter(path) as w:
        w.add_manifest({})
    assert files(tmp_path) == [path.name]


def test_memory_of_a_stream_is_bounded(tmp_path):
    import tracemalloc

    buffer = np.zeros(1 << 20, np.uint8)
    tracemalloc.start()
    with BundleWriter(tmp_path / "m.giw") as w:
        w.add_manifest({})
        with w.stream("weights", "") as s:
            for _ in range(24):
                s.write(buffer)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
