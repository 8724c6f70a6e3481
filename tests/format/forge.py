"""Builds .giw bytes by hand, right or wrong in one place, without the writer under test."""

import struct

import google_crc32c
import msgpack

MAGIC = bytes.fromhex("894749570d0a1a0a")

# The smallest bundle: an empty manifest object and nothing else. Version 1 is frozen in these bytes.
SMALLEST = bytes.fromhex(
    "894749570d0a1a0a"  # magic
    "01000000"  # version
    "00000000"  # flags
    "9300000000000000"  # file size 147
    "5000000000000000"  # index offset 80
    "4300000000000000"  # index size 67
    "e28a26c7"  # index CRC
    "00000000000000000000000000000000"  # reserved
    "3e60b0b1"  # header CRC
    "7b7d"  # the manifest: {}
    "0000000000000000000000000000"  # padding
    "81a873656374696f6e7391"  # {"sections": [
    "88a5616c69676e40"  # {"align": 64
    "a5636f64656300"  # "codec": 0
    "a3637263c404aad07b29"  # "crc": one chunk
    "a46b696e6401"  # "kind": 1
    "a46e616d65a0"  # "name": ""
    "a66f666673657440"  # "offset": 64
    "a372617702"  # "raw": 2
    "a473697a6502"  # "size": 2}]}
)


def crc(data: bytes) -> int:
    return google_crc32c.value(data)


def header(file_size, index_offset, index_size, index_crc, *, magic=MAGIC, version=1, flags=0, reserved=bytes(16)):
    body = struct.pack("<8sIIQQQI16s", magic, version, flags, file_size, index_offset, index_size, index_crc, reserved)
    return body + struct.pack("<I", crc(body))


def wrap(body: bytes, index: bytes, **fields) -> bytes:
    """Header + body + index, with right sizes and checksums unless `fields` says otherwise."""
    values = {
        "file_size": 64 + len(body) + len(index),
        "index_offset": 64 + len(body),
        "index_size": len(index),
        "index_crc": crc(index),
    }
    return header(**(values | fields)) + body + index


def entry(kind=1, name="", offset=64, data=b"{}", **fields):
    """An index entry that is right for `data` at `offset`, changed by `fields`."""
    table = b"".join(struct.pack("<I", crc(data[i : i + (4 << 20)])) for i in range(0, len(data), 4 << 20))
    values = {
        "align": 65536 if kind in (6, 7) else 64,
        "codec": 0,
        "crc": table,
        "kind": kind,
        "name": name,
        "offset": offset,
        "raw": len(data),
        "size": len(data),
    }
    return values | fields


def bundle(*entries, body=b"{}" + bytes(14), **fields) -> bytes:
    return wrap(body, msgpack.packb({"sections": list(entries)}), **fields)
