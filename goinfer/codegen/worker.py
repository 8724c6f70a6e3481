"""A compile worker: `python -m goinfer.codegen.worker`. Reads requests on stdin, writes objects on stdout.

Messages are framed as in messages.py. Request: {symbol, kind, attrs, target}; the
kinds "driver" and "crc32c" are whole functions of every image. Reply: {object} or {error}. A fatal error inside LLVM
ends this process; the pool turns that into a typed error naming the kernel.
"""

import os
import sys
from typing import IO

from goinfer.bundle_format.errors import GoinferError
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen.compile import compile_kernel
from goinfer.codegen.messages import read_message, write_message
from goinfer.codegen.target import target_named


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until the stream ends."""
    while (request := read_message(requests)) is not None:
        try:
            spec = Kernel(request["symbol"], request["kind"], request["attrs"])
            reply: dict[str, bytes | str] = {"object": compile_kernel(spec, target_named(request["target"]))}
        except GoinferError as e:
            reply = {"error": f"kernel {request['symbol']}: {e}"}
        except Exception as e:
            reply = {"error": f"kernel {request['symbol']} for {request['target']}: {type(e).__name__}: {e}"}
        write_message(replies, reply)


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # whoever asked is gone, after Ctrl-C say: no reply, and no complaint about the last flush
        os._exit(0)
