"""Where gates find their data: testdata/ of the checkout, and a cache for what is slow to compute again."""

import os
from pathlib import Path

from goinfer.bundle_format.errors import GoinferError

CHECKOUT = Path(__file__).resolve().parents[2]


class CheckoutError(GoinferError):
    """A gate needs files of the source checkout that are not there."""


def data_folder() -> Path:
    """The checkout's testdata folder. Raises CheckoutError where goinfer is installed without its checkout."""
    folder = CHECKOUT / "testdata"
    if not folder.is_dir():
        raise CheckoutError(f"gate: {folder} is missing: run gates from a source checkout (pip install -e .)")
    return folder


def cache_folder(name: str) -> Path:
    """A folder under $GOINFER_CACHE, else $XDG_CACHE_HOME/goinfer, else ~/.cache/goinfer; made if it is missing."""
    own, base = os.environ.get("GOINFER_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else (Path(base) if base else Path.home() / ".cache") / "goinfer"
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
