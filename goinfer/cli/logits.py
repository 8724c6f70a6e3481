"""`goinfer logits`: the numbers themselves, for gates and for people."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.cli.options import Bundle, Context, Json, Kv, Target, Threads, Verify, load, path, print_json

if TYPE_CHECKING:
    import numpy as np

    from goinfer.bundle_format.output import Output
    from goinfer.runtime.model import Model

_LAST_ID = (1 << 31) - 1
"""No vocabulary is larger; which ids a model has it says itself."""


def logits(
    model: Bundle,
    ids: Annotated[
        str | None, typer.Option("--ids", help="Token ids as 1,2,3, or an .npz file with an array `ids`.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Text, encoded as the model wants it.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", parser=path, help="The .npz to write.")] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Add every layer's hidden states.")] = False,
    threads: Threads = None,
    kv: Kv = None,
    context: Context = None,
    target: Target = None,
    verify: Verify = None,
    json: Json = False,
) -> None:
    """Logits of every position: arrays ids [n], logits [n, vocab] and, on demand, hidden [layers + 2, n, hidden]."""
    from goinfer.runtime.checks import prompt_text
    from goinfer.runtime.prompt import encode_prompt

    if (ids is None) == (text is None):
        raise UsageError("give either --ids or --text")
    if text is not None:
        prompt_text("--text", text)
    if out is None and not json:
        raise UsageError("nowhere to put the logits: give a file with -o")
    output = None if out is None else _output(out, model, ids)
    given = None if ids is None else parse_ids(ids)
    with load(model, threads=threads, kv=kv, context=context, target=target, verify=verify, slots=1) as opened:
        arrays = _compute(opened, given if given is not None else encode_prompt(opened.tokenizer, str(text)), hidden)
    if output is not None:
        _save(output, arrays)
    best = arrays["logits"].argmax(axis=1)
    if json:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        print_json({"out": None if out is None else str(out), "shapes": shapes, "next": best.tolist()})
    else:
        n, vocab = arrays["logits"].shape
        print(f"{out}: {n} positions, vocabulary {vocab}, likeliest next token {best[-1]}")


def _output(out: Path, model: Path, ids: str | None) -> "Output":
    """The file to write, refused before anything is computed for it where it can be."""
    from goinfer.bundle_format.output import Output, refuse_same

    refuse_same(out, [model] if ids is None or not _is_file(ids) else [model, ids], "logits")
    output = Output(out, "logits")
    output.check()
    return output


def _save(output: "Output", arrays: "dict[str, np.ndarray]") -> None:
    import numpy as np

    with output.replacing() as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _compute(model: "Model", ids: list[int], hidden: bool) -> "dict[str, np.ndarray]":
    import numpy as np

    if not ids:
        raise UsageError("no token ids: give at least one")
    arrays: dict[str, Any] = {"ids": np.asarray(ids, np.int64)}
    result = model.forward(ids, hidden_states=hidden)
    if isinstance(result, tuple):
        arrays["logits"], arrays["hidden"] = result
    else:
        arrays["logits"] = result
    return arrays


def parse_ids(given: str) -> list[int]:
    """Ids from `1,2,3` or from a file."""
    from goinfer.runtime.checks import whole

    return [whole("--ids", token, 0, _LAST_ID) for token in (_ids_in(Path(given)) if _is_file(given) else _ids(given))]


def _ids(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise UsageError(f"--ids {given[:40]}: want 1,2,3 or an .npz file") from None


def _is_file(ids: str) -> bool:
    return ids.endswith(".npz")


def _ids_in(file: Path) -> list[int]:
    import zipfile

    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as arrays:
            if "ids" not in arrays:
                raise UsageError(f"{file}: has no array `ids`")
            array = arrays["ids"]
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise GoinferError(f"{file}: not an .npz file: {error}") from None
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{file}: `ids` must be a row of integers, not {array.dtype} {list(array.shape)}")
    return [int(i) for i in array]
