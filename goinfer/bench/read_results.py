"""Reading results files that `goinfer bench -o` wrote."""

import json
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
    """The name of the model of a run, at most 26 characters."""
    if data.get("shape"):
        return f"{data['shape']} shape"
    name: str = data["bundle"]["name"].removesuffix(".giw")
    return name if len(name) <= 26 else name[:25] + "…"
