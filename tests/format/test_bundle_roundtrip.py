"""What is written is read back, by goinfer's reader and by the second one, and the same input gives the same bytes."""

import os
import stat

import forge
import numpy as np
import pytest
import second_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from goinfer.bundle_format import spec
from goinfer.bundle_format.checksum import crc32c, crc32c_at
from goinfer.bundle_format.describe import describe
from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.verify import verify
from goinfer.bundle_format.writer import BundleWriter


def write_sample(path, manifest=None):
    rng = np.random.default_rng(7)
    with BundleWriter(path) as w:
        w.add("graph", "", b"module {\n  giw.linear\n}\n" * 40, codec="zstd")
        w.add("code", "x86-64-v3", b"\xc3" * 300)
        w.add("code", "x86-64-v4+vnni", b"\xcc" * 5)
        offsets = []
        with w.stream("weights", "") as s:
            for size in (1000, 7, 0, 4096):
                offsets.append(s.write(rng.integers(0, 256, size, np.uint8)))
                s.align(64)
        w.add_manifest(manifest or {"b": [1, 2.5, None], "a": {"é": "x"}})
    return offsets


def test_sections_come_back(tmp_path):
    path = tmp_path / "m.giw"
    offsets = write_sample(path)
    assert offsets == [0, 1024, 1088, 1088]
    rng = np.random.default_rng(7)
    first = rng.integers(0, 256, 1000, np.uint8)
    with Bundle.open(path) as b:
        assert bytes(b.section("graph")) == b"module {\n  giw.linear\n}\n" * 40
        assert b.entry("graph").codec == "zstd" and b.entry("graph").size < b.entry("graph").raw_size
        assert b.targets == ["x86-64-v3", "x86-64-v4+vnni"]
        assert b.manifest == {"a": {"é": "x"}, "b": [1, 2.5, None]}
        assert b.has("weights") and not b.has("weights", "x") and not b.has("plan")
        weights = b.section("weights")
        assert weights.readonly and bytes(weights[:1000]) == first.tobytes() and not any(weights[1000:1024])
        assert np.frombuffer(weights, np.uint8).ctypes.data % 4096 == 0
        for target in b.targets:
            assert b.file_offset("code", target) % 65536 == 0
        assert os.pread(b.fileno(), 300, b.file_offset("code", "x86-64-v3")) == b"\xc3" * 300
        assert b.path == path
        del weights


def test_smallest_bundle_is_frozen(tmp_path):
    path = tmp_path / "m.giw"
    with BundleWriter(path) as w:
        w.add_manifest({})
    assert path.read_bytes() == forge.SMALLEST == forge.bundle(forge.entry())
    with Bundle.open(path) as b:
        assert b.manifest == {} and b.targets == []


def test_same_input_same_bytes(tmp_path):
    one, two = tmp_path / "one.giw", tmp_path / "two.giw"
    write_sample(one, {"a": 1, "b": 2})
    write_sample(two, {"b": 2, "a": 1})
    assert one.read_bytes() == two.read_bytes()


def test_bytes_do_not_depend_on_how_a_stream_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(spec, "CHUNK_SIZE", 64)
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    files = []
    for step in (1, 63, 64, 65, 1000):
        path = tmp_path / f"{step}.giw"
        with BundleWriter(path) as w:
            w.add_manifest({})
            with w.stream("weights", "") as s:
                for i in range(0, 1000, step):
                    assert s.tell() == i
                    s.write(data[i : i + step])
        files.append(path.read_bytes())
        with Bundle.open(path) as b:
            assert bytes(b.section("weights")) == data.tobytes() and len(list(b.entry("weights").chunks())) == 16
    assert len(set(files)) == 1


def test_many_real_chunks(tmp_path):
    path = tmp_path / "m.giw"
    data = np.random.default_rng(2).integers(0, 256, (9 << 20) + 5, np.uint8)
    with BundleWriter(path) as w:
        w.add("weights", "", data)
        w.add_manifest({})
    with Bundle.open(path, threads=3) as b:
        assert np.array_equal(np.frombuffer(b.section("weights"), np.uint8), data)
        chunks = list(b.entry("weights").chunks())
        assert [c.size for c in chunks] == [4 << 20, 4 << 20, (1 << 20) + 5]
        assert [c.crc for c in chunks] == [
            forge.crc(data[i : i + (4 << 20)].tobytes()) for i in range(0, 9 << 20, 4 << 20)
        ]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_section_that_ends_near_a_boundary(tmp_path, size):
    path = tmp_path / "m.giw"
    with BundleWriter(path) as w:
        w.add("plan", "", bytes(range(size)))
        w.add_manifest({})
    with Bundle.open(path) as b:
        assert bytes(b.section("plan")) == bytes(range(size))
    assert second_reader.read(path.read_bytes())[("plan", "")] == bytes(range(size))


def test_buffers_of_every_kind_are_written_as_their_bytes(tmp_path):
    path = tmp_path / "m.giw"
    array = np.arange(6, dtype="<i4").reshape(2, 3)
    with BundleWriter(path) as w:
        for name, data in (("a", array), ("b", memoryview(array)), ("c", array.tobytes()), ("d", bytearray(array))):
            w.add("plan", name, data)
        w.add_manifest({})
    with Bundle.open(path) as b:
        assert {bytes(b.section("plan", name)) for name in "abcd"} == {array.tobytes()}


def test_zstd_is_a_wish(tmp_path):
    path = tmp_path / "m.giw"
    noise = np.random.default_rng(3).integers(0, 256, 500, np.uint8).tobytes()
    with BundleWriter(path) as w:
        w.add("graph", "noise", noise, codec="zstd")
        w.add("graph", "zeros", bytes(1 << 20), codec="zstd")
        w.add("graph", "empty", b"", codec="zstd")
        w.add_manifest({})
    with Bundle.open(path) as b:
        assert [s.codec for s in b.sections] == ["none"] * 4
        assert bytes(b.section("graph", "noise")) == noise and bytes(b.section("graph", "zeros")) == bytes(1 << 20)


def test_views_outlive_close(tmp_path):
    path = tmp_path / "m.giw"
    write_sample(path)
    b = Bundle.open(path)
    view = b.section("code", "x86-64-v3")
    b.close()
    b.close()
    assert bytes(view) == b"\xc3" * 300


def test_replaced_file_keeps_old_readers_whole(tmp_path):
    path = tmp_path / "m.giw"
    write_sample(path, {"old": 1})
    with Bundle.open(path, "off") as b:
        write_sample(path, {"new": 1})
        b.check_weights()
        assert b.manifest == {"old": 1}
    with Bundle.open(path) as b:
        assert b.manifest == {"new": 1}


def test_output_has_ordinary_permissions_and_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.giw", tmp_path / "link.giw"
    link.symlink_to(real)
    old = os.umask(0o022)
    try:
        write_sample(link)
    finally:
        os.umask(old)
    assert link.is_symlink() and stat.S_IMODE(real.stat().st_mode) == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.giw", "real.giw"]


def test_describe(tmp_path):
    path = tmp_path / "m.giw"
    write_sample(path)
    with Bundle.open(path) as b:
        info = describe(b)
    assert info.version == 1 and info.file_size == path.stat().st_size
    assert info.overhead + sum(s.size for s in info.sections) == info.file_size
    assert info.as_dict()["sections"][1]["section"] == "code/x86-64-v3"
    assert len(info.lines()) == 1 + 5 + 1 and "code/x86-64-v4+vnni" in info.lines()[3]


@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_crc_continues(data, cut):
    cut = min(cut, len(data))
    assert crc32c(data) == forge.crc(data) == second_reader.crc(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    array = np.frombuffer(data, np.uint8)
    assert crc32c_at(array.ctypes.data, array.size) == crc32c(data)


NAMES = st.text("abcXYZ019._+/-", max_size=12)
SECTIONS = st.lists(
    st.tuples(
        st.sampled_from([k for k in spec.KINDS if k != "manifest"]),
        NAMES,
        st.one_of(st.binary(max_size=400), st.builds(lambda b, n: b * n, st.binary(max_size=9), st.integers(0, 99))),
        st.booleans(),
        st.sampled_from([None, 64, 256, 65536]),
    ),
    max_size=6,
    unique_by=lambda s: s[:2],
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(sections=SECTIONS, manifest=st.dictionaries(st.text(), JSON, max_size=4))
def test_round_trip_with_both_readers(tmp_path_factory, sections, manifest):
    path = tmp_path_factory.mktemp("round") / "m.giw"
    with BundleWriter(path) as w:
        for kind, name, data, squeeze, align in sections:
            w.add(kind, name, data, "zstd" if squeeze and kind not in spec.MAPPED_KINDS else "none", align)
        w.add_manifest(manifest)
    expected = {(kind, name): data for kind, name, data, _, _ in sections}
    with Bundle.open(path) as b:
        assert {key: bytes(b.section(*key)) for key in expected} == expected
        assert b.manifest == manifest
    assert verify(path).ok
    second = second_reader.read(path.read_bytes())
    second.pop(("manifest", ""))
    assert second == expected
