"""Goldens of real checkpoints: computed by transformers once, kept in the user's cache by content."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from goinfer.gates import oracle
from goinfer.gates.goldens import Goldens, GoldensError, load_goldens, save_goldens
from goinfer.gates.paths import cache_folder

KEPT_BYTES = 3 << 30
"""The cache is cut back to this; the oldest goldens go first."""


def checkpoint_hash(path: Path) -> str:
    """SHA-256 of the file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_goldens(source: Path, prompts: Sequence[Sequence[int]], greedy: int = oracle.GREEDY) -> Goldens:
    """Goldens of a GGUF file; the key holds its content, the prompts, and the versions and code that compute them."""
    digest = checkpoint_hash(source)
    code = hashlib.sha256(Path(oracle.__file__).read_bytes()).hexdigest()
    facts = [digest, oracle.reference_name(), code, greedy, [list(p) for p in prompts]]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    path = cache_folder("oracle") / f"{key}.npz"
    try:
        return load_goldens(path)
    except GoldensError:
        pass
    goldens = oracle.Oracle.load(source).goldens(prompts, {"checkpoint": digest[:16]}, greedy=greedy)
    save_goldens(path, goldens)
    _trim(path)
    return goldens


def _trim(newest: Path) -> None:
    """Remove the oldest goldens beyond KEPT_BYTES, never the newest."""
    files = sorted(newest.parent.glob("*.npz"), key=lambda p: p.stat().st_mtime)
    total = sum(p.stat().st_size for p in files)
    for path in files:
        if total <= KEPT_BYTES or path == newest:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
