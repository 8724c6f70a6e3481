"""Which source files a family's numbers depend on, and their hashes.

The files are found by following imports from where the work is done: the family's own file, the compile driver, the
checkpoint readers, the engine, and the modules of the kernel kinds that the family's plans use. Blank and comment
lines do not count, so a better comment makes nothing stale.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from goinfer.families.registry import family
from goinfer.gates.paths import CHECKOUT

ROOTS = ("goinfer.compiler.driver", "goinfer.compiler.checkpoints", "goinfer.runtime.engine", "goinfer.codegen.driver")
"""Modules that every family goes through."""

NO_NUMBERS = (
    "goinfer/__init__.py",
    "goinfer/*/__init__.py",
    "goinfer/*/errors.py",
    "goinfer/compiler/tokenizer*",
    "goinfer/compiler/unicode_classes*",
    "goinfer/compiler/checkpoints/*tokenizer*",
    "goinfer/compiler/checkpoints/hf_generation.py",
    "goinfer/codegen/work*",
    "goinfer/codegen/messages.py",
    "goinfer/families/registry.py",
    "goinfer/bundle_format/*",
)
"""Files on those paths that cannot change a number: they would only make parity stale for nothing."""

NUMBERS_AFTER_ALL = ("goinfer/bundle_format/plan.py", "goinfer/bundle_format/kernel_abi.py")
KERNELS = CHECKOUT / "goinfer" / "codegen" / "kernels"


def source_hashes(family_name: str, kinds: Iterable[str]) -> dict[str, str]:
    """Path in the checkout -> hash, for a family whose plans use these kernel kinds."""
    roots = [*ROOTS, family(family_name).build.__module__, f"goinfer.families.{family_name}"]
    roots += [f"goinfer.codegen.kernels.{kernel_module(kind)}" for kind in sorted(set(kinds))]
    paths = closure(roots) | {"goinfer/compiler/giw.irdl.mlir"}
    return {path: file_hash(CHECKOUT / path) for path in sorted(paths)}


def snapshot_id(hashes: Mapping[str, str]) -> str:
    """A short name for a set of hashes."""
    text = "\n".join(f"{path} {digest}" for path, digest in sorted(hashes.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fixture_hash(paths: Iterable[Path]) -> str:
    """One hash over the files of a fixture, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def file_hash(path: Path) -> str:
    """Hash of a file; of a Python file without its blank and comment lines."""
    data = path.read_bytes()
    if path.suffix == ".py":
        lines = [line.rstrip() for line in data.splitlines()]
        data = b"\n".join(line for line in lines if line and not line.lstrip().startswith(b"#"))
    return hashlib.sha256(data).hexdigest()[:12]


def _counts(path: str) -> bool:
    return path in NUMBERS_AFTER_ALL or not any(fnmatchcase(path, pattern) for pattern in NO_NUMBERS)


@cache
def kernel_module(kind: str) -> str:
    """The module under codegen/kernels that registers a kernel kind."""
    for path in sorted(KERNELS.glob("*.py")):
        if f'@kernel("{kind}")' in path.read_text():
            return path.stem
    return kind


def closure(modules: Sequence[str]) -> set[str]:
    """Files that count of the modules and of everything of ours that they import, lazily too.

    What a file that does not count imports is not followed.
    """
    found: set[str] = set()
    todo = list(modules)
    while todo:
        path = module_file(todo.pop())
        name = "" if path is None else str(path.relative_to(CHECKOUT))
        if path is None or name in found or not (_counts(name) or path.name == "__init__.py"):
            continue
        found.add(name)
        if name != "goinfer/__init__.py":
            todo += imports(path)
    return {name for name in found if _counts(name)}


def module_file(name: str) -> Path | None:
    """The file of one of our modules or packages; None for anything else."""
    if name.split(".", maxsplit=1)[0] != "goinfer":
        return None
    base = CHECKOUT.joinpath(*name.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Names that a file imports; `from a import b` may mean the module a.b, so both are named."""
    return tuple(_imports(ast.parse(path.read_bytes())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
