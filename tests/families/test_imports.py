"""What a family file may import: the graph, the family protocol, the tensor map, the config and its errors."""

import ast
from pathlib import Path

import pytest

import goinfer.families

FILES = sorted(Path(goinfer.families.__file__).parent.glob("*.py"))
ALLOWED = {
    "goinfer.compiler.graph",
    "goinfer.compiler.graph_view",
    "goinfer.compiler.ops",
    "goinfer.compiler.family",
    "goinfer.compiler.errors",
    "goinfer.compiler.checkpoints.config_view",
    "goinfer.compiler.checkpoints.tensor_map",
    "goinfer.families",
}
STANDARD = {"__future__", "collections.abc", "dataclasses", "importlib", "math", "typing"}
WITH_NUMPY = {"rope.py", "fields.py"}  # tables and float32 constants; a family itself holds no array


def imported(path: Path) -> set[str]:
    """Modules a file imports anywhere, lazily too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_imports_follow_the_arrows(path: Path) -> None:
    allowed = ALLOWED | STANDARD | ({"numpy", "numpy.typing"} if path.name in WITH_NUMPY else set())
    extra = {name for name in imported(path) if name not in allowed and not name.startswith("goinfer.families.")}
    assert not extra, f"{path.name} imports {sorted(extra)}"
