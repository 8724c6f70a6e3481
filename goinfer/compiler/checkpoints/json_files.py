"""Reading small JSON files: bounded, strict, with one-line errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from goinfer.compiler.checkpoints.files import SourceFile, refuse_lfs_pointer
from goinfer.compiler.errors import CheckpointError, ConfigError, DuplicateError

MAX_JSON: Final = 1 << 28
"""Largest JSON file that is read: tokenizer.json of a vocabulary of 262144 has 33 MB."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ConfigError naming the file for anything else, and for a key given twice."""
    return parse_object(read_bytes(path), path.name)


def read_bytes(path: Path) -> bytes:
    """The bytes of a small file."""
    file = SourceFile(path)
    try:
        refuse_lfs_pointer(file)
        if file.size > MAX_JSON:
            raise ConfigError(f"{file.name}: {file.size} bytes, more than such a file can need")
        return file.read(0, file.size)
    finally:
        file.close()


def parse_object(raw: bytes, name: str, wrong: type[CheckpointError] = ConfigError) -> dict[str, Any]:
    """A JSON object from bytes; `wrong` is raised for anything else."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise DuplicateError(f"{name}: key {twice!r} occurs twice")
        return out

    try:
        value = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise wrong(f"{name}: not JSON: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(value, dict):
        raise wrong(f"{name}: a JSON {type(value).__name__}, where an object is needed")
    return value
