"""Options that several commands share, and how a model is opened from them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from goinfer.cli.params import Argument, Option

if TYPE_CHECKING:
    from goinfer.runtime.model import Model


def path(given: str) -> Path:
    """An argument that is a path: Path("") would be the current directory. The name shows in --help."""
    from goinfer.bundle_format.errors import UsageError

    if not str(given):
        raise UsageError("a path is empty: give the name of a file")
    return Path(given)


Bundle = Annotated[Path, Argument(parser=path, help="A .giw bundle.", show_default=False)]
Threads = Annotated[int | None, Option("--threads", min=1, help="Worker threads; default: all usable cores.")]
Kv = Annotated[str | None, Option("--kv", help="KV cache precision: f32, f16 or int8.")]
Context = Annotated[
    int | None,
    Option("--context", min=1, help="Positions a sequence may hold; default: the model's, at most 4096."),
]
Target = Annotated[str | None, Option("--target", help="Use this target's code instead of the best one.")]
Verify = Annotated[str | None, Option("--verify", help="Check weights: full, background or off.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]


def load(bundle: Path, **options: Any) -> "Model":
    """goinfer.load with the options that were given."""
    import goinfer

    return goinfer.load(bundle, **{name: value for name, value in options.items() if value is not None})


def at_most_one(**given: bool) -> None:
    """Raise UsageError where more than one of these options was given."""
    from goinfer.bundle_format.errors import UsageError

    named = [f"--{name}" for name, wanted in given.items() if wanted]
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other: give one of them")


def print_json(data: Any) -> None:
    """One line of JSON on stdout."""
    import json

    print(json.dumps(data, ensure_ascii=False))


def size(count: float) -> str:
    """Bytes for people: 3 digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"
