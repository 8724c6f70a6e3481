"""The commands of `goinfer`. Each lives in a file of its own and imports what it needs when it runs."""

from typing import Annotated

import typer

from goinfer.cli.bench import BenchCommand, bench
from goinfer.cli.dashes import Command, Group, typed
from goinfer.cli.demo import demo
from goinfer.cli.gate import gate
from goinfer.cli.inspect import inspect
from goinfer.cli.logits import logits
from goinfer.cli.prequant import prequant
from goinfer.cli.run import run
from goinfer.cli.verify import verify

app = typer.Typer(
    cls=Group,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
for _command in (prequant, run, logits, inspect, verify, demo):
    app.command(cls=Command)(typed(_command))
app.command(cls=BenchCommand)(typed(bench))
app.add_typer(gate)


def _show_version(wanted: bool) -> None:
    if wanted:
        import goinfer

        print(f"goinfer {goinfer.__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=False)
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An ahead-of-time compiler for language models, and the runtime of its bundles."""

