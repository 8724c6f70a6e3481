"""What the reference computed, as data: prompts, logits, hidden states, greedy continuations. Needs no torch to read.

One .npz: `about` (JSON), and for prompt n the arrays `n.ids`, `n.logits` [positions, vocab] f32, `n.rows` (positions
whose hidden states are kept), `n.hidden` [layers + 2, rows, hidden] f32 and `n.greedy` (the continuation's ids).
"""

import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.bundle_format.errors import GoinferError
from goinfer.gates.compare import EXACT, F32, Bars

PARTS = ("ids", "logits", "rows", "hidden", "greedy")


class GoldensError(GoinferError):
    """A goldens file is missing, damaged or not what its format says."""


@dataclass(frozen=True)
class Prompt:
    """What the reference made of one prompt. `hidden[:, j]` belongs to position `rows[j]`."""

    ids: NDArray[np.int64]
    logits: F32
    rows: NDArray[np.int64]
    hidden: F32
    greedy: NDArray[np.int64]


@dataclass(frozen=True)
class Goldens:
    """All prompts of one checkpoint, and who computed them. `about` is JSON: reference, versions, noise floor ..."""

    prompts: tuple[Prompt, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bars(self) -> Bars:
        """The bars of an f32 bundle: EXACT, or ten times the fixture's own noise floor where that is stricter."""
        floor = float(self.about.get("noise_rel_l2", EXACT.rel_l2))
        return replace(EXACT, rel_l2=min(EXACT.rel_l2, 10 * floor))

    @property
    def positions(self) -> int:
        """Positions whose logits are known."""
        return sum(len(p.ids) for p in self.prompts)


def load_goldens(path: Path) -> Goldens:
    """Read a goldens file. Raises GoldensError naming the file and what is wrong with it."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            count = int(about["prompts"])
            prompts = tuple(Prompt(**{part: stored[f"{n}.{part}"] for part in PARTS}) for n in range(count))
    except FileNotFoundError:
        raise GoldensError(f"goldens: {path}: missing: make them with testdata/make_tiny.py") from None
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise GoldensError(f"goldens: {path}: {' '.join(str(error).split())}: make them again") from None
    for n, prompt in enumerate(prompts):
        _check(prompt, f"goldens: {path}: prompt {n}")
    return Goldens(prompts, about)


def _check(p: Prompt, where: str) -> None:
    good = (
        p.ids.ndim == 1 and p.ids.size > 0
        and p.logits.ndim == 2 and len(p.logits) == len(p.ids) and p.logits.dtype == np.float32
        and p.hidden.ndim == 3 and p.hidden.shape[1] == len(p.rows) and p.hidden.dtype == np.float32
        and p.rows.size > 0 and p.rows.min() >= 0 and p.rows.max() < len(p.ids)
    )  # fmt: skip
    if not good:
        raise GoldensError(f"{where}: arrays do not fit each other: make the file again")
    if not (np.isfinite(p.logits).all() and np.isfinite(p.hidden).all()):
        raise GoldensError(f"{where}: the reference holds NaN or infinity")


def save_goldens(path: Path, goldens: Goldens, compress: bool = False) -> None:
    """Write a goldens file (equal contents give equal bytes), replacing the old one in one step."""
    about = {**goldens.about, "prompts": len(goldens.prompts)}
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about, sort_keys=True))}
    for n, prompt in enumerate(goldens.prompts):
        arrays |= {f"{n}.{part}": getattr(prompt, part) for part in PARTS}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getbuffer(), archive.compression)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
