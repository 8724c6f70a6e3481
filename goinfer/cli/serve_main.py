"""The `goinfer-serve` program."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goinfer.bundle_format.errors import UsageError
from goinfer.cli.dashes import Command, call, typed
from goinfer.cli.entry import run_program
from goinfer.cli.options import Bundle, Context, Kv, Target, Threads, Verify, load

if TYPE_CHECKING:
    from goinfer.runtime.model import Model

_MOST_GIGABYTES = 1_000_000

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


@app.command(cls=Command)
@typed
def serve(
    model: Bundle,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; others than loopback need a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes any free one.")] = 8080,
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="Key clients must send; better set in GOINFER_API_KEY.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Model name in answers; default: the file's.")] = None,
    slots: Annotated[int, typer.Option("--slots", min=1, max=256, help="Requests that run at once.")] = 8,
    allow_host: Annotated[list[str] | None, typer.Option("--allow-host", help="Accept this Host header too.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option("--allow-origin", help="Let pages of this origin call; https://name:port.")
    ] = None,
    stream_weights: Annotated[
        bool, typer.Option("--stream-weights", help="Page weights from the file instead of keeping all in memory.")
    ] = False,
    weight_cache: Annotated[
        float | None, typer.Option("--weight-cache", help="GB of weights to keep; default: half of the memory.")
    ] = None,
    threads: Threads = None,
    kv: Kv = None,
    context: Context = None,
    target: Target = None,
    verify: Verify = None,
) -> None:
    """Serve a bundle over HTTP with the OpenAI API: /v1/chat/completions, /v1/completions, /v1/models, /health."""
    from goinfer.serve.server import Address, Limits, bind
    from goinfer.serve.server import serve as serve_forever

    if weight_cache is not None and not stream_weights:
        raise UsageError("--weight-cache: has a meaning only together with --stream-weights")
    budget = _weight_budget(weight_cache)
    served_name = _model_name(name, model)
    address = Address(host, port, api_key, tuple(allow_host or ()), tuple(allow_origin or ()))
    access = address.access()
    sock = bind(address)  # before the model: a port in use must not cost a minute
    options = {"threads": threads, "kv": kv, "context": context, "target": target, "verify": verify}
    with sock, load(model, slots=slots, **options) as opened:
        if stream_weights:
            _stream_weights(opened, budget)
        served = _served(opened, served_name, slots)
        facts = opened.engine.info()
        note = f"{model.name} on {facts['target']}, {facts['threads']} threads, context {facts['context']}"
        serve_forever(served, access, sock, lambda url: print(f"{url}  {note}", file=sys.stderr, flush=True), Limits())


def _served(model: "Model", name: str, slots: int):  # type: ignore[no-untyped-def]
    from goinfer.serve.served import ServedModel

    chat = model.chat_ids if model.has_chat_template else None
    return ServedModel(name, model.engine, model.vocabulary, slots, chat, int(time.time()))


def _model_name(name: str | None, path: Path) -> str:
    """What answers call the model; a file name that is no text is made one."""
    from goinfer.runtime.checks import prompt_text

    return path.stem.encode(errors="replace").decode() if name is None else prompt_text("--name", name)


def _weight_budget(gigabytes: float | None) -> int:
    if gigabytes is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if not 0 < gigabytes <= _MOST_GIGABYTES:
        raise UsageError(f"--weight-cache {gigabytes}: want gigabytes above 0, at most {_MOST_GIGABYTES}")
    return int(gigabytes * 1e9)


def _stream_weights(model: "Model", budget: int) -> None:
    from goinfer.runtime.stream_weights import WeightStreamer

    WeightStreamer(model.engine, budget)


def main(args: Sequence[str] | None = None) -> int:
    """Run the program; the return value is its exit code."""
    return run_program(lambda: call(app, "goinfer-serve", args), "goinfer-serve")


if __name__ == "__main__":
    sys.exit(main())
