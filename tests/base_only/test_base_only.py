"""A bundle runs where only the base dependencies are installed, with NumPy's matrix products raising.

Makes a virtual environment and installs the project into it without extras, so it needs a package index: heavy.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import goinfer
from tests.base_only.test_imports import ABSENT, HERE, ROOT

pytestmark = pytest.mark.heavy

IDS = [1, 2, 3, 50, 99, 7, 7, 200]
TEXT = "the hen then"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the base dependencies."""
    folder = tmp_path_factory.mktemp("base")
    source = folder / "source"
    shutil.copytree(ROOT / "goinfer", source / "goinfer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    # The same NumPy: the test compares environments, not versions.
    install = [folder / "venv/bin/python", "-m", "pip", "install", "-q", source, f"numpy=={np.__version__}"]
    subprocess.run(install, check=True, timeout=600)
    return folder / "venv/bin"


def call(program: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, with this folder's sitecustomize and away from the repository."""
    settings = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME")}
    settings["PYTHONPATH"] = str(HERE)
    done = subprocess.run(
        [program, *args], env=settings, cwd=program.parent, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == code, (args, done.stdout, done.stderr)
    return done


def test_the_environment_is_bare(base: Path) -> None:
    packages = [*ABSENT.split(), "llama_cpp"]
    code = (
        "import importlib.util as u, goinfer\n"
        f"print([p for p in {packages!r} if u.find_spec(p)], goinfer.__file__)"
    )
    absent, _, place = call(base / "python", "-c", code).stdout.strip().partition(" ")
    assert absent == "[]"
    assert place.startswith(str(base.parent)), "the installed package is tested, not the checkout"
    assert "NumPy was called" in call(base / "python", "-c", "import numpy as n; n.dot(1, 2)", code=1).stderr


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text"])
@pytest.mark.parametrize("quant", ["f32", "int4"])
def test_logits_are_the_same_bytes(
    base: Path, tiny_bundle: Callable[..., Path], tmp_path: Path, family: str, quant: str
) -> None:
    bundle, out = tiny_bundle(family, "plain", quant), tmp_path / "out.npz"
    call(base / "goinfer", "verify", str(bundle))
    call(base / "goinfer", "logits", str(bundle), "--ids", ",".join(map(str, IDS)), "--hidden", "-o", str(out))
    with goinfer.load(bundle) as model, np.load(out) as got:
        logits, hidden = model.forward(IDS, hidden_states=True)
        assert got["logits"].tobytes() == logits.tobytes()
        assert got["hidden"].tobytes() == hidden.tobytes()


def test_run_writes_the_same_text(base: Path, tiny_bundle: Callable[..., Path], tmp_path: Path) -> None:
    bundle = tiny_bundle("llama", "plain/model.gguf", "f32")
    flags = ["--raw", "-p", TEXT, "--temp", "0", "-n", "12", "--ignore-eos"]
    got = call(base / "goinfer", "run", str(bundle), *flags).stdout
    with goinfer.load(bundle) as model:
        pieces = model.generate(TEXT, max_new_tokens=12, temperature=0.0, ignore_eos=True)
        assert got == "".join(p.text for p in pieces) + "\n"


def test_compiling_says_what_is_missing(base: Path, tmp_path: Path) -> None:
    checkpoint = ROOT / "testdata/tiny/llama/plain"
    done = call(base / "goinfer", "prequant", str(checkpoint), "-o", str(tmp_path / "m.giw"), code=1)
    assert "compiler" in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
