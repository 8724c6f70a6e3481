"""How a program starts and ends: one line for an error, an exit code with a meaning, never a traceback.

Exit codes: 0 success, 1 failure, 2 bad usage, 130 interrupted, 141 the reader of the output has left, 143 terminated.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from goinfer.bundle_format.errors import GoinferError, install_hint

INTERRUPTED, PIPE_CLOSED, TERMINATED = 130, 141, 143


def run_program(body: Callable[[], int | None], name: str) -> int:
    """Run what a command line asks for and return the exit code; every error has been printed."""
    code = _run(body, name)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or PIPE_CLOSED
    if code == PIPE_CLOSED:
        _discard_output()
    return code


def _run(body: Callable[[], int | None], name: str) -> int:
    try:
        _prepare_streams()
        with _unwinding_signals():
            return body() or 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer's own ending for it, with code 1
            return PIPE_CLOSED
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        return report(name, error)


def report(name: str, error: Exception) -> int:
    """Print one line about an error; the exit code that goes with it."""
    code, text = _explain(error)
    try:
        print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
    except BrokenPipeError:
        _discard_output()
    return code


def _explain(error: Exception) -> tuple[int, str]:
    if isinstance(error, GoinferError):
        return error.exit_code, str(error)
    if hasattr(error, "format_message"):  # click's family of errors, wherever typer keeps it
        return getattr(error, "exit_code", 2), f"{error.format_message()} (see --help)"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return 1, f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return 1, "out of memory"
    if isinstance(error, ModuleNotFoundError):
        extra = _extra_of(error.name or "")
        return 1, f"{error.name} is not installed: {extra}"
    if os.environ.get("GOINFER_TRACEBACK"):
        raise error
    return 1, f"internal error: {type(error).__name__}: {error} (GOINFER_TRACEBACK=1 shows where)"


def _extra_of(module: str) -> str:
    extras = {"starlette": "serve", "uvicorn": "serve", "torch": "oracle", "transformers": "oracle"}
    return install_hint(extras.get(module.split(".", maxsplit=1)[0], "compiler"))


def _prepare_streams() -> None:
    """Text the terminal cannot show must not end the program. Bytes of the input that are no text come as they do in
    arguments, so that the same check refuses them. A stream that is closed (`<&-`, `>&-`) is as if on /dev/null."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, _null_stream(fd))
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=errors)


def _null_stream(fd: int) -> TextIO:
    """A stream on /dev/null for one that Python found closed. It takes the stream's number if nothing has it yet: else
    the next file that is opened, a bundle perhaps, would, and get what others write there."""
    null = os.open(os.devnull, os.O_RDONLY if fd == 0 else os.O_WRONLY)
    try:
        os.fstat(fd)
    except OSError:
        os.dup2(null, fd)
        os.close(null)
        null = fd
    os.set_inheritable(null, True)
    return open(null, "r" if fd == 0 else "w", encoding="utf-8", closefd=False)


def _discard_output() -> None:
    """The reader of our output is gone; keep the interpreter's last flush from complaining about it."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(null, stream.fileno())


@contextmanager
def _unwinding_signals() -> Iterator[None]:
    """SIGTERM and Ctrl-C unwind the program, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see cli/launch.py
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)
