"""The models that a run makes for itself in its temporary folder: sources, and the bundles compiled from them."""

import ctypes
from collections.abc import Callable
from pathlib import Path

from goinfer.bench.arms import why_absent
from goinfer.bench.synthetic import shape_named, write_gguf
from goinfer.bundle_format.errors import GoinferError, UsageError

Say = Callable[[str], None]

FILE_TYPES = {"q4_0": 2}
"""What --requantise takes, and llama.cpp's number for it (LLAMA_FTYPE_MOSTLY_Q4_0)."""


def synthetic(folder: Path, name: str, say: Say) -> Path:
    """A GGUF file with random weights of a known shape."""
    shape = shape_named(name)
    say(f"writing random weights of shape {name}")
    return write_gguf(folder / f"{name}.gguf", shape)


def compiled(source: Path, folder: Path, say: Say, targets: list[str] | None = None) -> Path:
    """The bundle of a source, with the default recipe."""
    import goinfer

    say(f"compiling {source.name}")
    return goinfer.prequant(source, folder / f"{source.stem}.giw", quant="int4", targets=targets).path


def check_requantise(kind: str) -> None:
    """Raise UsageError for a type that is not offered, and where the program that does it is not installed."""
    if kind not in FILE_TYPES:
        raise UsageError(f"--requantise {kind}: unknown type: use {', '.join(FILE_TYPES)}")
    absent = why_absent("llama.cpp")
    if absent is not None:
        raise UsageError(f"--requantise {kind} is done by {absent}")


def requantised(source: Path, folder: Path, kind: str, threads: int, say: Say) -> Path:
    """A copy of a GGUF file with its weights rounded again to a type that every program reads, by llama.cpp.

    The values are worse than those of either file; the speed of reading and multiplying them is what is measured.
    """
    check_requantise(kind)
    import llama_cpp as lib

    from goinfer.bench.arms import silent

    say(f"requantising {source.name} to {kind.upper()}")
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    out = folder / f"{source.stem}-{kind.upper()}.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = FILE_TYPES[kind], True, threads
    if lib.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(params)) != 0:
        raise GoinferError(f"bench: llama.cpp could not requantise {source.name}: run without --requantise")
    return out
