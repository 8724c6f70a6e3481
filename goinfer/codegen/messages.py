"""The framing between the compile pool and its workers: a little-endian u32 length, then msgpack."""

import struct
from typing import IO, Any

import msgpack


def read_message(stream: IO[bytes]) -> Any:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack("<I", head)[0])
    return msgpack.unpackb(body, raw=False)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Write one message and flush."""
    body = msgpack.packb(message, use_bin_type=True)
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()
