"""When and how weights are checked: policies, threads, an injected CRC, the background thread, the verify report."""

import os
import threading
import time

import forge
import numpy as np
import pytest

from goinfer.bundle_format import checksum, spec, weight_check
from goinfer.bundle_format.errors import BundleReadError, ChecksumError, TruncatedError
from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.verify import verify
from goinfer.bundle_format.writer import BundleWriter

CHUNK = 4096


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """A bundle of 50 small chunks of weights, and a function that damages the chunks of some numbers."""
    monkeypatch.setattr(spec, "CHUNK_SIZE", CHUNK)
    path = tmp_path / "m.giw"
    with BundleWriter(path) as w:
        w.add_manifest({})
        w.add("weights", "", np.random.default_rng(0).integers(0, 256, 50 * CHUNK - 5, np.uint8))
        w.add("graph", "", b"module {}\n" * 20, codec="zstd")
    start = Bundle.open(path).file_offset("weights")

    def damage(*numbers):
        with open(path, "r+b") as f:
            for number in numbers:
                f.seek(start + number * CHUNK + 17)
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte ^ 4]))

    return path, damage


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 5, None])
def test_full_check_names_the_first_damaged_chunk(bundle, threads, resident):
    path, damage = bundle
    Bundle.open(path, threads=threads, resident=resident).close()
    damage(31, 9, 40)
    before = threading.active_count()
    with pytest.raises(ChecksumError, match=r"section weights, chunk 9, bytes 102400\.\.106496") as caught:
        Bundle.open(path, threads=threads, resident=resident)
    assert (caught.value.section, caught.value.chunk, caught.value.offset) == ("weights", 9, 65536 + 9 * CHUNK)
    assert threading.active_count() == before


def test_off_opens_and_check_weights_finds_it_later(bundle):
    path, damage = bundle
    damage(49)
    with Bundle.open(path, "off") as b:
        assert len(b.section("weights")) == 50 * CHUNK - 5
        for resident in (True, False):
            with pytest.raises(ChecksumError, match="chunk 49"):
                b.check_weights(resident=resident)


def test_default_is_full_up_to_the_limit_and_background_above(bundle, monkeypatch):
    path, _ = bundle
    monkeypatch.setattr(spec, "FULL_CHECK_LIMIT", 50 * CHUNK - 5)
    with Bundle.open(path) as b:
        assert b.background is None
    monkeypatch.setattr(spec, "FULL_CHECK_LIMIT", 50 * CHUNK - 6)
    with Bundle.open(path) as b:
        assert b.background is not None and b.background.wait(30)
        assert b.background.finished and b.background.checked_bytes == 50 * CHUNK - 5
        b.raise_if_damaged()


def test_small_sections_are_checked_whatever_verify_says(bundle):
    path, _ = bundle
    data = bytearray(path.read_bytes())
    data[Bundle.open(path).file_offset("graph")] ^= 1
    path.write_bytes(data)
    for verify_weights in ("off", "background", "full"):
        with pytest.raises(ChecksumError, match="section graph"):
            Bundle.open(path, verify_weights)


def test_injected_crc_is_used_and_believed(bundle):
    path, _ = bundle
    sizes = []

    def crc(address, size):
        sizes.append(size)
        return checksum.crc32c_at(address, size)

    with Bundle.open(path, "off") as b:
        b.check_weights(crc)
        assert sizes == [CHUNK] * 49 + [CHUNK - 5]
        with pytest.raises(ChecksumError, match="chunk 0"):
            b.check_weights(lambda address, size: 0)
    sizes.clear()
    Bundle.open(path, "full", crc=crc).close()
    assert len(sizes) == 52
    assert verify(path, crc=crc).ok and not verify(path, crc=lambda address, size: 1).ok


def test_a_full_check_runs_beside_its_caller(bundle):
    """`open` returns while chunks are unchecked; `finish_check` waits and names the first bad chunk in the file, not
    the first found. Seen red with the error that was found first, and with `finish_check` not waiting."""
    path, damage = bundle
    damage(7)
    damage(30)
    later = threading.Event()

    with Bundle.open(path, "off") as b:
        start = b._bytes.ctypes.data + b.file_offset("weights")

        def late(address, size):
            chunk = (address - start) // CHUNK
            if chunk == 7:  # judged last
                assert later.wait(30)
                while not running._errors:
                    time.sleep(0.001)
            return checksum.crc32c_at(address, size)

        b._running = running = weight_check.ParallelCheck(b._weights(), b._range_crc(late, True), "m", threads=3)
        later.set()
        with pytest.raises(ChecksumError, match="section weights, chunk 7"):
            b.finish_check()
        b.finish_check()
    with Bundle.open(path, "full", wait=False) as b, pytest.raises(ChecksumError, match="section weights, chunk 7"):
        b.finish_check()


def test_close_stops_a_full_check(bundle):
    path, damage = bundle
    damage(40)
    started, go, sizes = threading.Event(), threading.Event(), []

    def slow(address, size):
        started.set()
        go.wait(30)
        sizes.append(size)
        return checksum.crc32c_at(address, size)

    with pytest.raises(ZeroDivisionError), Bundle.open(path, "off") as b:
        b._running = weight_check.ParallelCheck(b._weights(), b._range_crc(slow, True), "m", threads=2)
        assert started.wait(30)
        threading.Timer(0.05, go.set).start()
        raise ZeroDivisionError
    assert 1 <= len(sizes) <= 4
    assert not [t for t in threading.enumerate() if t.name == "giw-check"]


def test_background_finding_is_raised_at_next_use(bundle):
    path, damage = bundle
    damage(20)
    seen, called = [], threading.Event()

    def on_damage(error):
        seen.append(error)
        called.set()

    with Bundle.open(path, "background", on_damage=on_damage) as b:
        assert called.wait(30)
        for use in (b.raise_if_damaged, lambda: b.section("weights"), lambda: b.section("manifest"), b.background.wait):
            with pytest.raises(ChecksumError, match="section weights, chunk 20"):
                use()
        assert b.background.checked_bytes == 20 * CHUNK
    assert len(seen) == 1 and type(seen[0]) is ChecksumError


def test_close_stops_a_background_check(bundle):
    path, _ = bundle
    started, go = threading.Event(), threading.Event()

    def slow(address, size):
        started.set()
        go.wait(30)
        return checksum.crc32c_at(address, size)

    b = Bundle.open(path, "off")
    check = weight_check.BackgroundCheck(b.sections[1:2], weight_check.crc_of_reads(b.fileno(), "m", slow), "m")
    b._background = check
    assert started.wait(30) and not check.finished and check.wait(0.01) is False
    threading.Timer(0.05, go.set).start()
    b.close()
    assert check.finished and check.error is None and check.checked_bytes == CHUNK


def test_a_crc_that_raises_does_not_count_as_checked(bundle):
    path, _ = bundle
    calls = []

    def broken(address, size):
        calls.append(size)
        if len(calls) > 5:
            raise RuntimeError("no such kernel")
        return checksum.crc32c_at(address, size)

    with Bundle.open(path, "off") as b:
        check = weight_check.BackgroundCheck(b.sections[1:2], weight_check.crc_of_reads(b.fileno(), "m", broken), "m")
        with pytest.raises(BundleReadError, match="check failed: m: RuntimeError: no such kernel"):
            check.wait(30)


def test_file_cut_while_open_is_an_error_not_a_crash(bundle):
    path, _ = bundle
    with Bundle.open(path, "off") as b:
        os.truncate(path, 65536 + 10 * CHUNK)
        with pytest.raises(TruncatedError, match="ended at byte 106496"):
            b.check_weights(resident=False, threads=1)


def test_read_error_is_typed(bundle, monkeypatch):
    path, _ = bundle
    real = os.preadv

    def preadv(fd, buffers, offset):
        if offset >= 65536 + 10 * CHUNK:
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    with Bundle.open(path, "off") as b:
        monkeypatch.setattr(os, "preadv", preadv)
        with pytest.raises(BundleReadError, match=r"at byte 106496: Input/output error: check the disk"):
            b.check_weights(resident=False, threads=2)
        monkeypatch.undo()


def test_verify_reports_everything(bundle):
    path, damage = bundle
    good = verify(path)
    assert good.ok and good.problems == () and good.file_size == path.stat().st_size
    good.raise_if_bad()
    damage(3, 44)
    data = bytearray(path.read_bytes())
    data[70] = 1
    path.write_bytes(data)
    seen = []
    report = verify(path, progress=lambda done, total: seen.append((done, total)))
    assert not report.ok and len(report.problems) == 3 and all("\n" not in line for line in report.problems)
    assert ["padding" in p for p in report.problems] == [True, False, False]
    assert [s.damaged for s in report.sections] == [(), (3, 44), ()]
    assert report.as_dict()["sections"][1] == {
        "section": "weights", "offset": 65536, "size": 50 * CHUNK - 5, "chunks": 50, "damaged_chunks": [3, 44]
    }  # fmt: skip
    assert seen[-1][0] == seen[-1][1] and len(seen) == 52 and seen == sorted(seen)
    with pytest.raises(Exception, match="nonzero padding"):
        report.raise_if_bad()


def test_package_fallback_without_the_library_symbol(monkeypatch):
    data = np.random.default_rng(4).integers(0, 256, 10_001, np.uint8)
    monkeypatch.setattr(checksum, "_extend", checksum._extend_package)
    assert checksum.crc32c(data) == checksum.crc32c_at(data.ctypes.data, data.size) == forge.crc(data.tobytes())
    assert checksum.crc32c(data[100:], checksum.crc32c(data[:100])) == forge.crc(data.tobytes())
    assert checksum.crc32c(b"") == 0 and checksum.crc32c_at(0, 0) == 0


def test_the_library_symbol_is_found_and_lets_other_threads_run():
    """Where google-crc32c has its C extension, the check must not hold the GIL (the engine runs beside it)."""
    google_crc32c = pytest.importorskip("google_crc32c._crc32c")
    assert google_crc32c and checksum._load_extend() is not None
    data = np.zeros(512 << 20, np.uint8)
    done = threading.Event()
    ticks = []

    def check():
        checksum.crc32c(data)
        done.set()

    thread = threading.Thread(target=check)
    thread.start()
    while not done.is_set():
        ticks.append(1)
        time.sleep(0.001)
    thread.join()
    assert len(ticks) > 3
