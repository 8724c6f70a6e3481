"""Where the installed programs start: Ctrl-C while modules load ends the process at once, without a traceback.

Until a command line runs there is nothing to clean up, and Python would print where in an import it was interrupted.
cli/entry.py takes over with an exit code of its own.
"""

import signal


def goinfer() -> int:
    """The program `goinfer`."""
    _end_on_interrupt()
    from goinfer.cli.main import main

    return main()


def goinfer_serve() -> int:
    """The program `goinfer-serve`."""
    _end_on_interrupt()
    from goinfer.cli.serve_main import main

    return main()


def _end_on_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
