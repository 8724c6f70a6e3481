"""The whole line in seconds: a tiny checkpoint becomes a bundle through the program, and gives the reference's numbers.

    pytest tests/test_tiny.py
"""

from pathlib import Path

import numpy as np
import pytest

import goinfer
from goinfer.cli.main import main
from goinfer.gates.compare import compare_logits, compare_rows
from goinfer.gates.goldens import load_goldens
from tests.conftest import TINY, native_target

FOLDER = TINY / "gemma3_text" / "plain"


def compiled(source: Path, out: Path) -> Path:
    assert main(["prequant", str(source), "-quant", "f32", "-target", native_target(), "-o", str(out), "-q"]) == 0
    assert main(["verify", str(out)]) == 0
    return out


def test_safetensors_to_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = compiled(FOLDER, tmp_path / "m.giw")
    goldens = load_goldens(FOLDER / "goldens.npz")
    for n, prompt in enumerate(goldens.prompts):
        np.savez(tmp_path / "ids.npz", ids=prompt.ids)
        out = tmp_path / f"{n}.npz"
        assert main(["logits", str(bundle), "--ids", str(tmp_path / "ids.npz"), "-hidden", "-o", str(out)]) == 0
        with np.load(out) as got:
            assert not compare_logits(got["logits"], prompt.logits).failures(goldens.bars)
            for layer, hidden in enumerate(got["hidden"][:, prompt.rows]):
                assert not compare_rows(hidden, prompt.hidden[layer], f"layer {layer}").failures(goldens.bars)
    assert main(["run", str(bundle), "--raw", "-p", "the"]) == 2, "a bundle without a tokenizer takes ids only"
    assert "no tokenizer" in capsys.readouterr().err


def test_gguf_to_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = compiled(FOLDER / "model.gguf", tmp_path / "m.giw")
    prompt = load_goldens(FOLDER / "goldens.npz").prompts[1]
    with goinfer.load(bundle) as model:
        pieces = list(model.generate(prompt.ids.tolist(), max_new_tokens=32, temperature=0.0, ignore_eos=True))
        assert [p.id for p in pieces] == prompt.greedy.tolist()
        wanted = "".join(p.text for p in model.generate("the hen", max_new_tokens=8, temperature=0.0, ignore_eos=True))
    capsys.readouterr()
    flags = ["--raw", "-p", "the hen", "-temp", "0", "-n", "8", "--ignore-eos"]
    assert main(["run", str(bundle), *flags]) == 0
    assert capsys.readouterr().out == wanted + "\n"
