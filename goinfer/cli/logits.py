"""`goinfer logits`: the numbers themselves, for gates and for people."""

import errno
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.cli.options import Bundle, Context, Json, Kv, Target, Threads, Verify, load, print_json

if TYPE_CHECKING:
    import numpy as np

    from goinfer.runtime.model import Model


def logits(
    model: Bundle,
    ids: Annotated[
        str | None, typer.Option("--ids", help="Token ids as 1,2,3, or an .npz file with an array `ids`.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Text, encoded as the model wants it.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The .npz to write.")] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Add every layer's hidden states.")] = False,
    threads: Threads = None,
    kv: Kv = None,
    context: Context = None,
    target: Target = None,
    verify: Verify = None,
    json: Json = False,
) -> None:
    """Logits of every position: arrays ids [n], logits [n, vocab] and, on demand, hidden [layers + 2, n, hidden]."""
    from goinfer.runtime.chat_prompt import encode_prompt
    from goinfer.runtime.checks import prompt_text

    if (ids is None) == (text is None):
        raise UsageError("give either --ids or --text")
    if text is not None:
        prompt_text("--text", text)
    if out is None and not json:
        raise UsageError("nowhere to put the logits: give a file with -o")
    if out is not None:
        _check_place(out)
    given = None if ids is None else parse_ids(ids)
    with load(model, threads=threads, kv=kv, context=context, target=target, verify=verify, slots=1) as opened:
        arrays = _compute(opened, given if given is not None else encode_prompt(opened.tokenizer, str(text)), hidden)
    if out is not None:
        save_npz(out, arrays)
    best = arrays["logits"].argmax(axis=1)
    if json:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        print_json({"out": None if out is None else str(out), "shapes": shapes, "next": best.tolist()})
    else:
        n, vocab = arrays["logits"].shape
        print(f"{out}: {n} positions, vocabulary {vocab}, likeliest next token {best[-1]}")


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
    if given.endswith(".npz"):
        return _ids_in(Path(given))
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise UsageError(f"--ids {given[:40]}: want 1,2,3 or an .npz file") from None


def _ids_in(path: Path) -> list[int]:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            if "ids" not in arrays:
                raise UsageError(f"{path}: has no array `ids`")
            array = arrays["ids"]
    except (ValueError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise GoinferError(f"{path}: not an .npz file: {error}") from None
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{path}: `ids` must be a row of integers, not {array.dtype} {list(array.shape)}")
    return [int(i) for i in array]


def save_npz(path: Path, arrays: "dict[str, np.ndarray]") -> None:
    """Write under a temporary name, then rename: a file that exists is complete."""
    import numpy as np

    _check_place(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=".goinfer-", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        os.fchmod(handle, 0o666 & ~_umask())
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check_place(path: Path) -> None:
    """Refuse what can be seen to be no place for a file, before anything is computed for it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        code = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), str(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
