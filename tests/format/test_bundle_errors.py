"""One refusal a test: files that are right but for one thing, and the error class and words for each."""

import os
import struct
import tracemalloc

import forge
import msgpack
import pytest
import second_reader
import zstandard

from goinfer.bundle_format import errors, spec
from goinfer.bundle_format.reader import Bundle
from goinfer.bundle_format.verify import verify


def refuse(tmp_path, data, error, *words, second=True):
    """Open and verify both refuse with `error`, in one line that has `words`; so does the second reader."""
    path = tmp_path / "m.giw"
    path.write_bytes(data)
    with pytest.raises(errors.BundleError) as caught:
        Bundle.open(path)
    assert type(caught.value) is error, caught.value
    message = str(caught.value)
    assert "\n" not in message and "m.giw" in message
    for word in words:
        assert word in message
    assert [type(e) for e in verify(path).errors] == [error]
    if second:
        with pytest.raises(second_reader.BadFile):
            second_reader.read(data)


def test_the_unchanged_file_is_accepted(tmp_path):
    path = tmp_path / "m.giw"
    path.write_bytes(forge.bundle(forge.entry()))
    assert Bundle.open(path).manifest == {}
    assert second_reader.read(path.read_bytes()) == {("manifest", ""): b"{}"}


# The header.


def test_empty_file(tmp_path):
    refuse(tmp_path, b"", errors.TruncatedError, "empty", "0 bytes read, 64 needed")


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63])
def test_file_that_ends_inside_the_header(tmp_path, size):
    refuse(tmp_path, forge.SMALLEST[:size], errors.TruncatedError, "header", f"{size} bytes read, 64 needed")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF\x03\x00\x00\x00" + bytes(60), "goinfer prequant"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "git lfs pull"),
        (b"<!DOCTYPE html>" + bytes(60), "web page"),
        (b"\x7fELF" + bytes(70), "7f454c46"),
        (b"x", "magic"),
        # a text-mode transfer turns CR LF into LF
        (forge.SMALLEST.replace(b"\r\n", b"\n"), "magic"),
    ],
)
def test_foreign_file(tmp_path, data, words):
    refuse(tmp_path, data, errors.NotABundleError, "header", words)


def test_newer_version(tmp_path):
    data = forge.bundle(forge.entry(), version=2)
    refuse(tmp_path, data, errors.NewerVersionError, "version 2", "reads up to 1", "upgrade")


def test_version_zero(tmp_path):
    refuse(tmp_path, forge.bundle(forge.entry(), version=0), errors.HeaderError, "version 0")


def test_unknown_flag(tmp_path):
    refuse(tmp_path, forge.bundle(forge.entry(), flags=4), errors.UnsupportedFlagsError, "0x4")


def test_reserved_bytes(tmp_path):
    refuse(tmp_path, forge.bundle(forge.entry(), reserved=bytes(15) + b"\x01"), errors.HeaderError, "reserved")


def test_header_checksum(tmp_path):
    data = forge.SMALLEST[:60] + b"\x00\x00\x00\x00" + forge.SMALLEST[64:]
    refuse(tmp_path, data, errors.HeaderError, "header", "checksum")


def test_trailing_byte(tmp_path):
    refuse(tmp_path, forge.SMALLEST + b"\x00", errors.TrailingBytesError, "1 bytes after the end")


def test_two_bundles_joined(tmp_path):
    refuse(tmp_path, forge.SMALLEST * 2, errors.TrailingBytesError, f"{len(forge.SMALLEST)} bytes after the end")


def test_file_shorter_than_it_says(tmp_path):
    refuse(tmp_path, forge.SMALLEST[:-1], errors.TruncatedError, "146 bytes, the header says 147")


def test_index_over_the_cap(tmp_path):
    data = forge.bundle(forge.entry(), index_size=spec.MAX_INDEX_SIZE + 1)
    refuse(tmp_path, data, errors.LimitError, "index too large")


@pytest.mark.parametrize(
    "place",
    [
        {"index_offset": 63},
        {"index_offset": 0},
        {"index_offset": 96},
        {"index_offset": 2**64 - 1},
        # a sum that is 147 in 64-bit arithmetic
        {"index_offset": 2**64 - (16 << 20) + 147, "index_size": 16 << 20},
    ],
)
def test_index_out_of_range(tmp_path, place):
    refuse(tmp_path, forge.bundle(forge.entry(), **place), errors.SectionRangeError, "index out of range")


def test_bytes_after_the_index(tmp_path):
    data = forge.bundle(forge.entry()) + b"\x00"
    data = forge.header(len(data), 80, len(data) - 81, forge.crc(data[80:-1])) + data[64:]
    refuse(tmp_path, data, errors.TrailingBytesError, "1 bytes after the index")


# The index.


def test_index_checksum(tmp_path):
    refuse(tmp_path, forge.bundle(forge.entry(), index_crc=1), errors.IndexChecksumError, "index", "checksum")


BODY = b"{}" + bytes(14)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (b"", errors.IndexFormatError),
        (b"\xc0", errors.IndexFormatError),  # nil
        (b"\xc1", errors.IndexFormatError),  # the one byte msgpack never uses
        (b"\x90", errors.IndexFormatError),  # []
        (b"\x91\x90", errors.IndexFormatError),  # [[]]
        (b"\x80", errors.MissingKeyError),  # {}
        (b"\x81\xa8sections\xc0", errors.IndexFormatError),
        (b"\x81\xa8sections\x90", errors.MissingSectionError),  # no manifest
        (b"\x81\xa8sections\x91\x80", errors.MissingKeyError),
        (b"\x81\xa8sections\x91\x01", errors.IndexFormatError),
        (b"\x82\xa8sections\x90\xa1x\x01", errors.UnknownKeyError),
        (b"\x82\xa8sections\x90\xa8sections\x90", errors.DuplicateKeyError),
        (b"\x81\xa8sections\x91\x81\xa8sections\x90", errors.IndexFormatError),  # a map of sections as a section
        (b"\x81\x01\x90", errors.IndexFormatError),  # a key that is no string
        (b"\x81\xa8sections\x90\x00", errors.TrailingBytesError),
        (b"\x81\xa8sections", errors.IndexFormatError),  # cut
        (b"\x81\xa8sections\xdd\xff\xff\xff\xff", errors.IndexFormatError),  # 2^32 - 1 items
        (b"\x81\xa8sections\xdc\xff\xff", errors.IndexFormatError),
        (b"\xdf\xff\xff\xff\xff", errors.IndexFormatError),  # a map of 2^32 - 1 pairs
        (b"\x81\xdb\xff\xff\xff\xff", errors.IndexFormatError),  # a string of 4 GiB
        (b"\x81\xa8sections\xc6\xff\xff\xff\xff", errors.IndexFormatError),  # binary of 4 GiB
        (b"\x81\xa2\xff\xfe\x90", errors.IndexFormatError),  # no UTF-8
        (b"\x81\xa8sections\xd4\x05\x00", errors.IndexFormatError),  # extension type
        (b"\x81\xa8sections\xd6\xff\x00\x00\x00\x00", errors.IndexFormatError),  # timestamp
        (b"\x91" * 5000, errors.IndexFormatError),  # deep nesting
        (b"\x81\xa1a" * 5000, errors.IndexFormatError),
    ],
)
def test_index_that_is_not_the_right_msgpack(tmp_path, index, error):
    refuse(tmp_path, forge.wrap(BODY, index), error, "index" if error is not errors.MissingSectionError else "manifest")


@pytest.mark.parametrize("index", [b"\x91" * 1000 + b"\xdc\x04\x00" * 400, b"\xdc\x04\x00" + b"\xc0" * (1 << 20)])
def test_hostile_index_takes_little_memory(tmp_path, index):
    path = tmp_path / "m.giw"
    path.write_bytes(forge.wrap(BODY, index))
    tracemalloc.start()
    with pytest.raises(errors.BundleError):
        Bundle.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(index) + (16 << 20)


def test_a_million_small_maps_take_little_memory(tmp_path):
    test_hostile_index_takes_little_memory(tmp_path, b"\xdc\x04\x00" + b"\x80" * (1 << 22))


def one(tmp_path, error, *words, **fields):
    refuse(tmp_path, forge.bundle(forge.entry(**fields)), error, *words)


def test_unknown_key_in_a_section(tmp_path):
    one(tmp_path, errors.UnknownKeyError, "'zzz'", zzz=1)


@pytest.mark.parametrize("key", ["align", "codec", "crc", "kind", "name", "offset", "raw", "size"])
def test_missing_key_in_a_section(tmp_path, key):
    fields = forge.entry()
    del fields[key]
    refuse(tmp_path, forge.bundle(fields), errors.MissingKeyError, key)


def test_key_twice_in_a_section(tmp_path):
    index = msgpack.packb({"sections": [forge.entry()]})
    index = index.replace(b"\x88", b"\x89", 1) + b"\xa4size\x02"
    refuse(tmp_path, forge.wrap(BODY, index), errors.DuplicateKeyError, "'size' twice")


@pytest.mark.parametrize("key", ["align", "codec", "kind", "offset", "raw", "size"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, -(2**63)])
def test_number_of_the_wrong_type(tmp_path, key, value):
    one(tmp_path, errors.IndexFormatError, f"`{key}`", **{key: value})


@pytest.mark.parametrize(("key", "value"), [("name", b"x"), ("name", 3), ("crc", "abcd"), ("crc", None)])
def test_text_of_the_wrong_type(tmp_path, key, value):
    one(tmp_path, errors.IndexFormatError, "wrong type", **{key: value})


@pytest.mark.parametrize("kind", [0, 9, 2**64 - 1])
def test_unknown_kind(tmp_path, kind):
    one(tmp_path, errors.UnknownKindError, f"kind {kind}", **{"kind": kind})


def test_unknown_codec(tmp_path):
    one(tmp_path, errors.UnknownCodecError, "codec 2", codec=2)


@pytest.mark.parametrize("name", [" ", "a b", "a\n", "\x00", "é", "a:b", "x" * 129])
def test_forbidden_name(tmp_path, name):
    data = forge.bundle(forge.entry(), forge.entry(2, name, 128, b""), body=b"{}" + bytes(62))
    refuse(tmp_path, data, errors.SectionNameError, "section name")


def test_longest_name_is_accepted(tmp_path):
    data = forge.bundle(forge.entry(), forge.entry(2, "x" * 128, 128, b""), body=b"{}" + bytes(62))
    assert len(second_reader.read(data)) == 2
    (tmp_path / "m.giw").write_bytes(data)
    assert Bundle.open(tmp_path / "m.giw").has("graph", "x" * 128)


@pytest.mark.parametrize("align", [0, 1, 16, 32, 65, 96, 131072, 2**63])
def test_alignment_that_is_not_allowed(tmp_path, align):
    one(tmp_path, errors.AlignmentError, f"asks for {align}", align=align)


def test_code_that_is_not_page_aligned(tmp_path):
    data = forge.bundle(forge.entry(), forge.entry(6, "t", 128, b"", align=4096), body=b"{}" + bytes(62))
    refuse(tmp_path, data, errors.AlignmentError, "code/t")


@pytest.mark.parametrize("kind", [6, 7])
def test_compressed_code_or_weights(tmp_path, kind):
    body = b"{}" + bytes(65536 - 66) + b"xxxx" + bytes(12)
    data = forge.bundle(forge.entry(), forge.entry(kind, "", 65536, b"xxxx", codec=1), body=body)
    refuse(tmp_path, data, errors.UnknownCodecError, "must not be compressed")


def test_raw_size_of_an_uncompressed_section(tmp_path):
    one(tmp_path, errors.SectionSizeError, "manifest", raw=3)


@pytest.mark.parametrize("table", [b"", b"abc", b"abcdefgh"])
def test_checksum_table_of_the_wrong_length(tmp_path, table):
    one(tmp_path, errors.ChecksumTableError, "checksum table", crc=table)


def test_size_near_the_end_of_64_bits(tmp_path):
    one(tmp_path, errors.ChecksumTableError, "manifest", size=2**64 - 1, raw=2**64 - 1)


def test_duplicate_section(tmp_path):
    body = b"{}" + bytes(62)
    data = forge.bundle(forge.entry(), forge.entry(2, "a", 128, b""), forge.entry(2, "a", 128, b""), body=body)
    refuse(tmp_path, data, errors.DuplicateSectionError, "graph/a")


def test_too_many_sections(tmp_path):
    empty = [forge.entry(2, str(i), 128, b"") for i in range(1024)]
    refuse(tmp_path, forge.bundle(forge.entry(), *empty, body=b"{}" + bytes(62)), errors.IndexFormatError, "index")


@pytest.mark.parametrize("entries", [[], [forge.entry(name="x")], [forge.entry(2)]])
def test_no_manifest(tmp_path, entries):
    refuse(tmp_path, forge.bundle(*entries), errors.MissingSectionError, "manifest")


# The layout.


def two(first, second, body=b"{}" + bytes(62) + b"graphtext" + bytes(7), **fields):
    return forge.bundle(
        forge.entry(**first), forge.entry(2, "", **({"offset": 128, "data": b"graphtext"} | second)), body=body
    )


def test_two_sections_are_accepted(tmp_path):
    assert second_reader.read(two({}, {}))[("graph", "")] == b"graphtext"
    (tmp_path / "m.giw").write_bytes(two({}, {}))
    assert bytes(Bundle.open(tmp_path / "m.giw").section("graph")) == b"graphtext"


def test_section_past_the_end(tmp_path):
    refuse(
        tmp_path, two({}, {"size": 17, "raw": 17}), errors.SectionRangeError, "graph (bytes 128..145)", "index at 144"
    )


def test_section_far_past_the_end(tmp_path):
    refuse(tmp_path, two({}, {"offset": 2**64 - 64}), errors.SectionRangeError, "graph")


def test_section_over_the_index(tmp_path):
    refuse(tmp_path, two({}, {"offset": 192}), errors.SectionRangeError, "graph")


def test_sections_that_overlap(tmp_path):
    data = two({"data": b"{}" + bytes(62) + b"g"}, {})
    refuse(tmp_path, data, errors.OverlapError, "section graph", "end of section manifest at 129")


def test_sections_out_of_order(tmp_path):
    entries = forge.entry(2, "", 128, b"graphtext"), forge.entry()
    data = forge.bundle(*entries, body=b"{}" + bytes(62) + b"graphtext" + bytes(7))
    refuse(tmp_path, data, errors.GapError, "the header", "graph")


def test_section_over_the_header(tmp_path):
    data = forge.bundle(forge.entry(offset=0, data=forge.SMALLEST[:8]))
    refuse(tmp_path, data, errors.OverlapError, "the header")


def test_section_off_its_alignment(tmp_path):
    body = b"{}" + bytes(63) + b"graphtext" + bytes(6)
    refuse(tmp_path, two({}, {"offset": 129}, body), errors.AlignmentError, "multiple of 64", "graph")


def test_hole_between_sections(tmp_path):
    body = b"{}" + bytes(126) + b"graphtext" + bytes(7)
    refuse(tmp_path, two({}, {"offset": 192}, body), errors.GapError, "between section manifest at 66", "graph")


def test_hole_before_the_index(tmp_path):
    data = forge.bundle(forge.entry(), body=b"{}" + bytes(30))
    refuse(tmp_path, data, errors.GapError, "the index at 96")


def test_index_off_its_alignment(tmp_path):
    refuse(tmp_path, forge.bundle(forge.entry(), body=b"{}" + bytes(10)), errors.GapError, "index at 76")


@pytest.mark.parametrize("at", [66, 100, 127, 137, 143])
def test_padding_that_is_not_zero(tmp_path, at):
    data = bytearray(two({}, {}))
    data[at] = 1
    refuse(tmp_path, bytes(data), errors.PaddingError, f"byte {at}", "padding")


# The sections.


def test_damaged_section(tmp_path):
    data = bytearray(two({}, {}))
    data[130] ^= 1
    refuse(tmp_path, bytes(data), errors.ChecksumError, "section graph, chunk 0, bytes 128..137")


def zstd_bundle(frame, raw):
    body = b"{}" + bytes(62) + frame
    entry = forge.entry(2, "", 128, frame, codec=1, raw=raw)
    return forge.bundle(forge.entry(), entry, body=body + bytes(-len(body) % 16))


FRAME = zstandard.ZstdCompressor(write_content_size=True).compress(b"abc" * 100)


def test_compressed_section_is_accepted(tmp_path):
    data = zstd_bundle(FRAME, 300)
    assert second_reader.read(data)[("graph", "")] == b"abc" * 100
    (tmp_path / "m.giw").write_bytes(data)
    assert bytes(Bundle.open(tmp_path / "m.giw").section("graph")) == b"abc" * 100


@pytest.mark.parametrize(
    ("frame", "raw"),
    [
        (FRAME, 299),
        (FRAME, 301),
        (b"not zstd at all", 300),
        (FRAME[:4], 300),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100), 300),
        (b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd", 300),  # a skippable frame
    ],
)
def test_frame_that_is_refused_at_open(tmp_path, frame, raw):
    # The second reader leaves the size to the decompressor, so it may refuse with another error.
    refuse(tmp_path, zstd_bundle(frame, raw), errors.CompressionError, "section graph", second=False)


@pytest.mark.parametrize("frame", [FRAME[:-3], FRAME + b"x", FRAME[:8] + b"\xff" * (len(FRAME) - 8), FRAME + FRAME])
def test_frame_that_does_not_decompress(tmp_path, frame):
    path = tmp_path / "m.giw"
    path.write_bytes(zstd_bundle(frame, 300))
    with Bundle.open(path) as b, pytest.raises(errors.CompressionError, match="section graph"):
        b.section("graph")
    assert [type(e) for e in verify(path).errors] == [errors.CompressionError]


@pytest.mark.parametrize("raw", [len(FRAME) * 256 + 1, 2**40, 2**64 - 1])
def test_decompression_bomb(tmp_path, raw):
    refuse(tmp_path, zstd_bundle(FRAME, raw), errors.LimitError, "graph", str(raw))


def manifest(text):
    body = text + bytes(-len(text) % 16)
    return forge.bundle(forge.entry(data=text), body=body)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", errors.ManifestError),
        (b"[]", errors.ManifestError),
        (b"{", errors.ManifestError),
        (b"\xff", errors.ManifestError),
        (b'{"a":NaN}', errors.ManifestError),
        (b'{"a":-Infinity}', errors.ManifestError),
        (b'{"a":1,"a":2}', errors.DuplicateKeyError),
        (b'{"b":{"a":1,"a":2}}', errors.DuplicateKeyError),
        (b'{"a":' + b"9" * 5000 + b"}", errors.ManifestError),
        (b"[" * 200000, errors.ManifestError),
    ],
)
def test_bad_manifest(tmp_path, text, error):
    # The second reader hands out bytes and does not parse JSON.
    refuse(tmp_path, manifest(text), error, "section manifest", second=False)


def test_manifest_over_the_cap(tmp_path, monkeypatch):
    monkeypatch.setattr(spec, "MAX_MANIFEST_SIZE", 1)
    refuse(tmp_path, forge.SMALLEST, errors.LimitError, "manifest too large", second=False)


def test_missing_section_lists_what_there_is(tmp_path):
    path = tmp_path / "m.giw"
    data = forge.bundle(forge.entry(), forge.entry(2, "a", 128, b""), body=b"{}" + bytes(62))
    path.write_bytes(data)
    with Bundle.open(path) as b:
        with pytest.raises(errors.MissingSectionError, match=r"graph/b: there is graph/a"):
            b.section("graph", "b")
        with pytest.raises(errors.MissingSectionError, match="none of this kind"):
            b.section("weights")


# The file system.


def test_missing_file(tmp_path):
    with pytest.raises(errors.BundleOpenError, match="no such file"):
        Bundle.open(tmp_path / "none.giw")
    assert "no such file" in verify(tmp_path / "none.giw").problems[0]


def test_directory_and_pipe_and_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in (
        (tmp_path, "directory"),
        (tmp_path / "pipe", "no regular file"),
        ("/dev/null", "no regular file"),
    ):
        with pytest.raises(errors.BundleOpenError, match=words):
            Bundle.open(path)


def test_path_with_a_newline_or_a_zero_gives_one_line(tmp_path):
    for name in ("a\nb.giw", "a\0b.giw"):
        with pytest.raises(errors.BundleOpenError) as caught:
            Bundle.open(f"{tmp_path}/{name}")
        assert "\n" not in str(caught.value)


def test_use_after_close(tmp_path):
    (tmp_path / "m.giw").write_bytes(forge.SMALLEST)
    b = Bundle.open(tmp_path / "m.giw")
    b.close()
    for use in (lambda: b.section("manifest"), b.check_weights, b.fileno):
        with pytest.raises(errors.BundleClosedError, match="closed"):
            use()


def test_unknown_verify_value(tmp_path):
    (tmp_path / "m.giw").write_bytes(forge.SMALLEST)
    with pytest.raises(errors.UsageError, match="full, background, off"):
        Bundle.open(tmp_path / "m.giw", "sometimes")


def test_every_error_is_a_bundle_error_with_exit_code_one():
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.BundleError)]
    assert len(classes) > 30 and {c.exit_code for c in classes} == {1}
    assert errors.UsageError.exit_code == 2 and struct.calcsize(spec.HEADER_STRUCT) == spec.HEADER_SIZE
