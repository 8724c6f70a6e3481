"""Reading results files that `goinfer bench -o` wrote."""

import json
import re
from pathlib import Path

from goinfer.bench.bars import Data
from goinfer.bundle_format.errors import UsageError


def read_results(path: Path) -> Data:
    """A results file. Raises UsageError for one that is missing or is none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: no results file: {error}") from error
    if not isinstance(data, dict) or "bars" not in data:
        raise UsageError(f"{path}: no results file: write one with goinfer bench -o")
    return data


def label(data: Data) -> str:
    """The name of the model of a run, with the type of its source if the name has none; at most 28 characters."""
    if "scaling" in data:
        return "sizes"
    if data.get("shape"):
        return f"{data['shape']} shape"
    name: str = data["bundle"]["name"].removesuffix(".giw").split(".")[0]
    kind: str = (data.get("source") or {}).get("type", "")
    if kind and not re.search(r"q\d", name.lower()):
        name = f"{name} {kind}"
    return name if len(name) <= 28 else name[:27] + "…"
