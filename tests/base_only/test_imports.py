"""The runtime stands on the base dependencies: what importing and running a bundle takes, and what they never touch."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import goinfer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMPILER = "mlir llvm llvmlite gguf safetensors ml_dtypes elftools"
ABSENT = f"{COMPILER} torch transformers starlette uvicorn openai httpx capstone hypothesis"
PRODUCTS = {"matmul", "dot", "einsum", "tensordot", "inner", "vdot", "matvec", "vecmat"}


def python(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, env=settings, cwd=ROOT, text=True, capture_output=True, timeout=120, check=False)


def loaded_by(statement: str, packages: str) -> str:
    """Which of the packages, and of our own rooms beyond the runtime, a statement brings in."""
    code = (
        f"import sys\n{statement}\n"
        f"names = {packages.split()!r}\n"
        "ours = ('goinfer.compiler', 'goinfer.codegen', 'goinfer.families', 'goinfer.serve', 'goinfer.gates')\n"
        "print([m for m in sys.modules if m.partition('.')[0] in names or m.startswith(ours)])\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("statement", ["import goinfer", "from goinfer import Model", "import goinfer.runtime.model"])
def test_importing_takes_no_compiler(statement: str) -> None:
    assert loaded_by(statement, f"{ABSENT} rich typer") == "[]"


def test_the_search_for_modules_sees_one() -> None:
    """The control of the test above."""
    assert loaded_by("import goinfer.codegen.errors, typer", "typer") != "[]"


@pytest.mark.parametrize("room", ["runtime", "bundle_format"])
def test_the_runtime_multiplies_no_matrices_in_numpy(room: str) -> None:
    found = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "goinfer" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Attribute) and node.attr in PRODUCTS | {"linalg"})
        or (isinstance(node, ast.alias) and node.name in PRODUCTS | {"numpy.linalg"})
    ]
    assert not found


def test_a_bundle_runs_without_the_compiler(tiny_bundle: Callable[..., Path], tmp_path: Path) -> None:
    """The quick form of test_base_only: this environment, with its other packages out of reach."""
    bundle, out = tiny_bundle("llama", "plain", "int4"), tmp_path / "out.npz"
    code = "import sys; from goinfer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    path = os.pathsep.join([str(HERE), str(ROOT)])
    done = python(code, "logits", str(bundle), "--ids", "1,2,3", "-o", str(out), PYTHONPATH=path, GOINFER_FORBID=ABSENT)
    assert done.returncode == 0, done.stderr
    with goinfer.load(bundle) as model, np.load(out) as got:
        assert got["logits"].tobytes() == model.forward([1, 2, 3]).tobytes()


@pytest.mark.parametrize("statement", ["import numpy; numpy.einsum('i,i', [1.0], [1.0])", "import mlir.ir"])
def test_what_is_out_of_reach_fails(statement: str) -> None:
    done = python(statement, PYTHONPATH=str(HERE), GOINFER_FORBID=ABSENT)
    assert done.returncode == 1
    assert "a matrix product of NumPy was called" in done.stderr or "forbidden by the test" in done.stderr
