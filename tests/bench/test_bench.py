"""The benchmark's own parts: interleaving, ratios, what a plan's token costs, synthetic files, the report.

No test here judges a speed.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import goinfer
from goinfer.bench import suite, synthetic
from goinfer.bench.ceilings import Ceilings
from goinfer.bench.rounds import Spread, interleave, ratios
from goinfer.bench.work import work_of
from goinfer.bundle_format.errors import UsageError
from goinfer.cli.main import main
from tests.conftest import native_target

Bundles = Callable[[str, str, str], Path]


def test_rounds_alternate_and_warm_ups_are_dropped() -> None:
    calls: list[str] = []

    def arm(name: str, values: list[float]) -> Callable[[], float]:
        taken = iter(values)

        def measure() -> float:
            calls.append(name)
            return next(taken)

        return measure

    samples = interleave({"a": arm("a", [99, 4, 6]), "b": arm("b", [99, 2, 2])}, rounds=2)
    assert calls == ["a", "b"] * 3 and samples == {"a": [4, 6], "b": [2, 2]}
    assert ratios(samples, "a", "b") == Spread(2.5, 2, 3)
    assert Spread.of([3, 1, 2]).text() == "2.0 (1.0..3.0)"


def test_ceilings_read_every_byte_and_are_finite() -> None:
    """The stream is checked by its result: the combination of all vectors; seen red with half of the memory skipped."""
    ceilings = Ceilings()
    memory = np.zeros((1 << 16) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory, out = memory[start : start + (1 << 16)], np.zeros(64, np.uint8)
    lanes = memory.view(np.uint32)
    lanes[:] = np.random.default_rng(0).integers(0, 1 << 32, lanes.size, dtype=np.uint32)
    ceilings._stream(memory.ctypes.data, memory.nbytes, out.ctypes.data)
    width = len(np.trim_zeros(out, "b")) // 4
    want = np.bitwise_xor.reduce(lanes.reshape(-1, width), axis=0)
    assert width in (4, 8, 16) and np.array_equal(out[: 4 * width].view(np.uint32), want)
    assert ceilings.read_bandwidth(2, 1 << 22, repeats=1) > 0 and ceilings.dot_peak(1, repeats=1) > 0


def test_the_work_of_a_token(tiny_bundle: Bundles) -> None:
    """Tiny llama: 3 layers of hidden 72, ffn 112, 6 heads and 2 KV heads of 20, vocabulary 260, tied, int4."""
    with goinfer.load(tiny_bundle("llama", "plain", "int4")) as model:
        plan = model.engine.plan
        work = work_of(plan)
        layer = 72 * (6 + 2 + 2) * 20 + 6 * 20 * 72 + 3 * 72 * 112
        assert work.row_products == 3 * layer and work.products == 3 * layer + 260 * 72
        matrices = [w for w in plan.weights if w.format != "vector"]
        assert work.bytes == sum(w.nbytes for w in matrices), "the tied embedding is read once, by the head"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_synthetic_model_compiles_and_runs(family: str, tmp_path: Path) -> None:
    shape = synthetic.Shape(family, 2, 128, 4, 2, 256, 300, tied=family == "llama", context=512)
    source = synthetic.write_gguf(tmp_path / "s.gguf", shape)
    again = synthetic.write_gguf(tmp_path / "t.gguf", shape)
    assert source.read_bytes() == again.read_bytes()
    goinfer.prequant(source, tmp_path / "s.giw", targets=[native_target()])
    with goinfer.load(tmp_path / "s.giw") as model:
        logits = model.forward(list(range(3, 40)))
        assert isinstance(logits, np.ndarray) and logits.shape == (37, 300) and np.isfinite(logits).all()
        assert 0.1 < logits.std() < 100
        assert {w.format for w in model.engine.plan.weights} == {"int4", "int8", "vector"}
        assert all(w.error == 0 for w in model.engine.plan.weights), "Q4_0 and Q8_0 are kept"


def test_shapes_are_those_of_their_models() -> None:
    """Products of a token against the parameter counts that the models are named for."""
    for name, low, high in (("135m", 1.2e8, 1.4e8), ("0.5b", 4.5e8, 5.1e8), ("1b", 1.1e9, 1.3e9), ("3b", 3e9, 3.3e9),
                            ("7b", 6.5e9, 6.9e9)):  # fmt: skip
        tensors = synthetic._tensors(synthetic.shape_named(name))
        assert low < sum(np.prod(dims) for _, dims, _ in tensors) < high, name
    with pytest.raises(UsageError, match=r"13b.*135m, 0\.5b, 1b, 3b, 7b"):
        synthetic.shape_named("13b")


def test_a_whole_run(tiny_bundle: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The command, on a tiny model and a small stream: every row is there, and absent peers are said."""
    monkeypatch.setattr(suite, "STREAM_BYTES", 1 << 22)
    bundle, out = tiny_bundle("gemma3_text", "plain/model.gguf", "int4"), tmp_path / "r.json"
    peer = tmp_path / "no.gguf"
    args = ["--rounds", "2", "--profile", "-vs", "llama.cpp", str(peer), "-o", str(out)]
    assert main(["bench", str(bundle), *args]) == 0
    text = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert set(results["tokens_per_second"]) == {
        "prefill 1", "prefill 16", "prefill 128", "prefill 512", "decode at 16",
        *(f"decode, batch of {n}" for n in (1, 2, 4, 8, 16)),
    }  # fmt: skip
    for row in results["tokens_per_second"].values():
        assert len(row["samples"]["goinfer"]) == 2 and row["rates"]["goinfer"]["low"] > 0
    assert results["ceilings"]["read_gb_per_s"] > 0 and results["memory"]["rss"] > 1e7
    assert {"start to first token", "open and verify"} == set(results["seconds"])
    assert f"--vs llama.cpp {peer}: no such file" in text and "openvino: not asked for" in text
    for title in ("prefill 512", "decode at 16"):
        steps = {line["name"]: line for line in results["profiles"][title]}
        assert {"attn_qkv", "attn", "ffn_down", "lm_head"} <= set(steps) and steps["attn_qkv"]["products"] > 0
        assert all(line["seconds"] >= 0 for line in steps.values())
    assert "prefill 512" in text and "of dot products" in text and "of reading" in text
    assert results["machine"]["cores"] >= 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.giw", "--synthetic", "1b"], "--synthetic: makes its own model"),
        (["--synthetic", "9b"], "--synthetic 9b: unknown shape"),
        (["m.giw", "--vs", "llama.cpp"], "--vs llama.cpp: needs the peer's file"),
        (["m.giw", "--vs", "llama.cpp", "same"], "--vs: same is the file that this run compiles"),
        (["m.giw", "--vs", "vllm", "x.gguf"], "--vs vllm: no such peer: use one of llama.cpp, openvino"),
        (["m.giw", "--rounds", "0"], "0 is not in the range"),
    ],
)
def test_bad_usage(args: list[str], message: str, capsys: Any) -> None:
    assert main(["bench", *args]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_results_go_where_a_file_may_go(tmp_path: Path, capsys: Any) -> None:
    """Refused before anything is measured. Seen red: written in place after the run, over whatever was there."""
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path / "none" / "r.json", tmp_path):
        assert main(["bench", "m.giw", "-o", str(place)]) == 1
        error = capsys.readouterr().err
        assert "cannot write" in error and error.count("\n") == 1, error
