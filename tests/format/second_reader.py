"""A second reader of .giw files, written from docs/format.md alone. It shares no code with goinfer.

Plain and slow on purpose (the CRC is a table in Python): its only use is to show that the page suffices.
"""

import struct

import msgpack
import zstandard

KINDS = ["manifest", "graph", "plan", "tokenizer", "chat", "code", "weights", "signature"]
CHUNK = 4194304
NAME_CHARACTERS = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+/-")


class BadFile(Exception):
    pass


def _crc_table():
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def need(condition, what):
    if not condition:
        raise BadFile(what)


def round_up(value, align):
    return (value + align - 1) // align * align


def read_header(data):
    need(data[:8] == bytes.fromhex("894749570d0a1a0a"), "magic")
    need(len(data) >= 64, "header length")
    need(struct.unpack("<I", data[60:64])[0] == crc(data[:60]), "header crc")
    version, flags = struct.unpack("<II", data[8:16])
    need(version == 1, "version")
    need(flags == 0, "flags")
    file_size, index_offset, index_size, index_crc = struct.unpack("<QQQI", data[16:44])
    need(data[44:60] == bytes(16), "reserved")
    need(file_size == len(data), "file size")
    need(index_size <= 16777216, "index size")
    need(index_offset >= 64 and index_offset % 16 == 0 and index_offset + index_size == file_size, "index place")
    index = data[index_offset:]
    need(crc(index) == index_crc, "index crc")
    return index_offset, index


def no_duplicates(pairs):
    need(len({key for key, _ in pairs}) == len(pairs), "duplicate key")
    return dict(pairs)


def check_entry(entry):
    need(set(entry) == {"align", "codec", "crc", "kind", "name", "offset", "raw", "size"}, "section keys")
    for key in ("align", "codec", "kind", "offset", "raw", "size"):
        need(type(entry[key]) is int and entry[key] >= 0, key)
    need(type(entry["name"]) is str and len(entry["name"]) <= 128, "name")
    need(set(entry["name"]) <= NAME_CHARACTERS, "name characters")
    need(type(entry["crc"]) is bytes, "crc type")
    need(1 <= entry["kind"] <= 8 and entry["codec"] in (0, 1), "kind or codec")
    mapped = KINDS[entry["kind"] - 1] in ("code", "weights")
    align = entry["align"]
    need(align in [1 << n for n in range(17)] and align >= (65536 if mapped else 64), "align")
    if entry["codec"] == 0:
        need(entry["raw"] == entry["size"], "raw size")
    else:
        need(not mapped, "compressed weights or code")
        need(entry["raw"] <= min(268435456, 256 * entry["size"]), "raw size")
    need(len(entry["crc"]) == 4 * round_up(entry["size"], CHUNK) // CHUNK, "crc table length")


def check_places(data, entries, index_offset):
    end = 64
    for entry in entries:
        need(entry["offset"] == round_up(end, entry["align"]), "section offset")
        need(entry["offset"] + entry["size"] <= index_offset, "section end")
        need(not any(data[end : entry["offset"]]), "padding")
        end = entry["offset"] + entry["size"]
    need(index_offset == round_up(end, 16) and not any(data[end:index_offset]), "padding before the index")


def read(data):
    """{(kind, name): raw bytes} of a whole bundle, or BadFile."""
    index_offset, index = read_header(data)
    try:
        value = msgpack.unpackb(index, raw=False, object_pairs_hook=no_duplicates)
    except BadFile:
        raise
    except Exception as error:
        raise BadFile(f"index: {error}") from error
    need(type(value) is dict and set(value) == {"sections"} and type(value["sections"]) is list, "index")
    entries = value["sections"]
    need(len(entries) <= 1024 and all(type(entry) is dict for entry in entries), "sections")
    for entry in entries:
        check_entry(entry)
    check_places(data, entries, index_offset)
    sections = {}
    for entry in entries:
        stored = data[entry["offset"] : entry["offset"] + entry["size"]]
        chunks = [stored[i : i + CHUNK] for i in range(0, len(stored), CHUNK)]
        need(b"".join(struct.pack("<I", crc(c)) for c in chunks) == entry["crc"], "section crc")
        key = (KINDS[entry["kind"] - 1], entry["name"])
        need(key not in sections, "duplicate section")
        sections[key] = zstandard.decompress(stored) if entry["codec"] else stored
        need(len(sections[key]) == entry["raw"], "decompressed size")
    need([name for kind, name in sections if kind == "manifest"] == [""], "manifest")
    return sections
