"""Any flipped byte and any cut is refused with the place in the message; random files never do anything worse."""

import random
import tracemalloc

import forge
import msgpack
import pytest
import second_reader
from hypothesis import given, settings
from hypothesis import strategies as st

from goinfer.bundle_format.errors import BundleError, PaddingError, TruncatedError
from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.verify import verify
from goinfer.bundle_format.writer import BundleWriter


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A small bundle with every kind of section, as (bytes, sections, header)."""
    path = tmp_path_factory.mktemp("sample") / "m.giw"
    with BundleWriter(path) as w:
        w.add_manifest({"model": "tiny"})
        w.add("graph", "", b"module { giw.linear }" * 20, codec="zstd")
        w.add("plan", "", bytes(range(200)))
        w.add("tokenizer", "", b"tok" * 50)
        w.add("chat", "", b"{{ messages }}")
        w.add("code", "x86-64-v3", b"\xc3" * 500)
        w.add("weights", "", bytes(range(256)) * 20)
        w.add("signature", "", b"s" * 64)
    with Bundle.open(path) as b:
        return path.read_bytes(), b.sections, b.header


def refusal(path, data):
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return caught.value


@pytest.mark.parametrize("how", [lambda b: b ^ 0xFF, lambda b: b ^ 1, lambda b: b ^ 0x80])
def test_every_flipped_byte_of_the_header(tmp_path, sample, how):
    data, _, _ = sample
    for at in range(64):
        changed = bytearray(data)
        changed[at] = how(changed[at])
        assert "header" in str(refusal(tmp_path / "m.giw", changed)), at


@pytest.mark.parametrize("how", [lambda b: b ^ 0xFF, lambda b: b ^ 1])
def test_every_flipped_byte_of_the_index(tmp_path, sample, how):
    data, _, header = sample
    assert header.index_size > 500
    for at in range(header.index_offset, len(data)):
        changed = bytearray(data)
        changed[at] = how(changed[at])
        assert "damaged index" in str(refusal(tmp_path / "m.giw", changed)), at


def test_flipped_bytes_of_the_sections_and_the_padding(tmp_path, sample):
    data, sections, header = sample
    rng = random.Random(5)
    inside = [(s.label, at) for s in sections for at in {s.offset, s.end - 1, *rng.sample(range(s.offset, s.end), 5)}]
    for label, at in inside:
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        assert f"section {label}, chunk 0" in str(refusal(tmp_path / "m.giw", changed)), at
    used = {at for s in sections for at in range(s.offset, s.end)}
    padding = [at for at in range(64, header.index_offset) if at not in used]
    for at in [*rng.sample(padding, 20), padding[0], padding[-1]]:
        changed = bytearray(data)
        changed[at] ^= 0x10
        error = refusal(tmp_path / "m.giw", changed)
        assert type(error) is PaddingError and f"byte {at} " in str(error)


def test_every_truncation(tmp_path):
    path, cut = tmp_path / "m.giw", tmp_path / "cut.giw"
    with BundleWriter(path) as w:
        w.add_manifest({"model": "tiny"})
        w.add("plan", "", bytes(range(200)))
        w.add("chat", "", b"{{ messages }}")
    data = path.read_bytes()
    assert len(data) < 1000
    for size in range(len(data)):
        error = refusal(cut, data[:size])
        assert type(error) is TruncatedError and f"{size} bytes" in str(error)


def test_truncations_of_a_large_one(tmp_path, sample):
    data, sections, header = sample
    edges = {at + d for s in sections for at in (s.offset, s.end) for d in (-1, 0, 1)} | {header.index_offset}
    for size in sorted(edges | set(range(0, len(data), 4999))):
        assert type(refusal(tmp_path / "m.giw", data[:size])) is TruncatedError


def test_zeroed_blocks_and_shifted_tail(tmp_path, sample):
    data, _, header = sample
    middle = sample[1][6].offset
    for changed in (
        data[:middle] + bytes(1024) + data[middle + 1024 :],
        data[:middle] + data[middle + 1 :] + b"\x00",
        data[: header.index_offset] + bytes(len(data) - header.index_offset),
        bytes(len(data)),
    ):
        refusal(tmp_path / "m.giw", changed)


def survives(path, data):
    """The reader opens the file or raises BundleError, and agrees with the second reader when that accepts."""
    path.write_bytes(data)
    try:
        with Bundle.open(path) as b:
            opened = {(s.kind, s.name): bytes(b.section(s.kind, s.name)) for s in b.sections}
    except BundleError as error:
        assert "\n" not in str(error)
        opened = None
    report = verify(path)
    assert report.ok == (opened is not None)
    if opened is not None:
        assert second_reader.read(data) == opened
    return opened


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400), prefix=st.sampled_from([b"", forge.MAGIC, forge.SMALLEST[:64], forge.SMALLEST]))
def test_random_files(tmp_path_factory, data, prefix):
    assert survives(tmp_path_factory.getbasetemp() / "random.giw", prefix + data) is None or not data


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=20)
    | st.text(max_size=9)
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["sections", "align", "kind", "x"]) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(index=st.one_of(st.binary(max_size=80), VALUES.map(msgpack.packb)))
def test_random_indexes_with_right_checksums(tmp_path_factory, index):
    survives(tmp_path_factory.getbasetemp() / "index.giw", forge.wrap(b"{}" + bytes(14), index))


NUMBERS = st.integers(0, 300) | st.sampled_from([64, 65536, 2**16 + 64, 2**31, 2**32, 2**63, 2**64 - 1])
CHANGES = st.dictionaries(
    st.sampled_from(["align", "codec", "kind", "name", "offset", "raw", "size"]),
    NUMBERS | st.text(max_size=3),
    max_size=3,
)


@settings(max_examples=200, deadline=None)
@given(first=CHANGES, second=CHANGES, body=st.binary(max_size=40))
def test_random_entries_with_right_checksums(tmp_path_factory, first, second, body):
    entries = [forge.entry() | first, forge.entry(2, "", 128, b"graph") | second]
    data = forge.bundle(*entries, body=b"{}" + bytes(62) + b"graph" + bytes(11) + body)
    survives(tmp_path_factory.getbasetemp() / "entries.giw", data)


def test_mutated_indexes_with_right_checksums_in_bounded_memory(tmp_path, sample):
    data, _, header = sample
    index, body = data[header.index_offset :], data[64 : header.index_offset]
    rng = random.Random(11)
    path = tmp_path / "m.giw"
    tracemalloc.start()
    for _ in range(300):
        changed = bytearray(index)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed))
            what = rng.randrange(3)
            if what == 0:
                changed[at] = rng.randrange(256)
            elif what == 1:
                del changed[at : at + rng.randint(1, 9)]
            else:
                changed[at:at] = rng.choice(
                    [b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x90"]
                )
        path.write_bytes(forge.wrap(body, bytes(changed)))
        try:
            Bundle.open(path).close()
        except BundleError as error:
            assert "\n" not in str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20
