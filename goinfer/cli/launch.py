"""Where the installed programs start: Ctrl-C while modules load ends the process at once, without a traceback.

Until a command line runs there is nothing to clean up, and Python would print where in an import it was interrupted.
cli/entry.py takes over with an exit code of its own.
"""

import gc
import os
import signal
import sys
from contextlib import suppress


def goinfer() -> int:
    """The program `goinfer`."""
    _end_on_interrupt()
    # Nearly all objects of a start live on; the collector need not look at them every 700 allocations.
    gc.set_threshold(50_000, 10, 10)
    from goinfer.cli.main import main

    return _end(main())


def goinfer_serve() -> int:
    """The program `goinfer-serve`."""
    _end_on_interrupt()
    from goinfer.cli.serve_main import main

    return main()


def _end(code: int) -> int:
    """End at once. Commands close what they opened; taking the interpreter apart would only cost time."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_on_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
