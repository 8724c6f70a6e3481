"""The `goinfer` program. A plain `goinfer run` starts without typer; everything else goes through cli/app.py."""

import sys
from collections.abc import Sequence

from goinfer.cli.direct import keywords
from goinfer.cli.entry import run_program
from goinfer.cli.run import run


def main(args: Sequence[str] | None = None) -> int:
    """Run the program; the return value is its exit code."""
    words = sys.argv[1:] if args is None else list(args)
    return run_program(lambda: _run(words), "goinfer")


def _run(words: list[str]) -> int | None:
    if words[:1] == ["run"] and (given := keywords(run, words[1:])) is not None:
        run(**given)
        return 0
    from goinfer.cli.app import app
    from goinfer.cli.dashes import call

    return call(app, "goinfer", words)


if __name__ == "__main__":
    sys.exit(main())
