"""The benchmark's own parts: interleaving, ratios, what a plan's token costs, synthetic files, the report.

No test here judges a speed.
"""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import goinfer
from goinfer.bench import ceilings, process, report, synthetic
from goinfer.bench.profile import OUTSIDE, NoClock, profile
from goinfer.bench.rounds import Spread, interleave, ratios
from goinfer.bench.shares import shares
from goinfer.bench.work import Work, work_of
from goinfer.bundle_format.errors import UsageError
from goinfer.cli.main import main
from goinfer.codegen.host import runs_here
from goinfer.codegen.target import TARGETS
from tests.bench import fakes
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


def test_the_work_of_a_token(tiny_bundle: Bundles) -> None:
    """Tiny llama: 3 layers of hidden 72, ffn 112, 6 heads and 2 KV heads of 20, vocabulary 260, tied, int4."""
    with goinfer.load(tiny_bundle("llama", "plain", "int4")) as model:
        plan = model.engine.plan
        work = work_of(plan, "f16")
        layer = 72 * (6 + 2 + 2) * 20 + 6 * 20 * 72 + 3 * 72 * 112
        last = 6 * 20 * 72 + 3 * 72 * 112  # of the last layer a row needs its keys and values alone
        assert work.row_products == 3 * layer - last and work.products == 3 * layer + 260 * 72
        matrices = [w for w in plan.weights if w.format != "vector"]
        assert work.bytes == sum(w.nbytes for w in matrices), "the tied embedding is read once, by the head"
        # 2 KV heads of 20 values, those of V padded to 32, in 2 bytes, over 3 layers
        assert work.kv == ((0, 3 * 2 * (20 + 32) * 2),)
        assert work.kv_bytes(99) == 100 * 624 and work.bytes_at(99) == work.bytes + 100 * 624
        assert work_of(plan, "f32").kv == ((0, 1248),)


def test_a_window_bounds_what_a_token_reads() -> None:
    """Seen red with the window taken for the position."""
    work = Work(1000, 0, 0, ((0, 10), (512, 3)))
    assert work.kv_bytes(0) == 13 and work.kv_bytes(599) == 10 * 600 + 3 * 512


def test_shares_pair_rates_with_the_ceilings_of_their_rounds() -> None:
    """A token after 16, one untimed and half of 31 more; the ceiling of each round. Seen red with the best ceiling."""
    work = Work(900_000, 500, 400, ((0, 1000),))
    of, taken = shares(work, "decode at 16", [1000.0, 2000.0], [1.0, 4.0]) or ("", [])
    one = 900_000 + 1000 * (16 + 1 + 15.5 + 1)
    assert of == "reading" and taken == pytest.approx([one * 1000 / 1e9, one * 2000 / 4e9])
    assert shares(work, "prefill 128", [1e6], [2.0]) == ("dot products", pytest.approx([400 * 1e6 / 2e9]))
    assert shares(work, "prefill 16", [1.0], [1.0]) is None is shares(work, "decode, batch of 8", [1.0], [1.0])


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_synthetic_model_compiles_and_runs(family: str, tmp_path: Path) -> None:
    shape = synthetic.Shape(family, 2, 128, 4, 2, 256, 300, tied=family == "llama", context=512)
    source = synthetic.write_gguf(tmp_path / "s.gguf", shape)
    again = synthetic.write_gguf(tmp_path / "t.gguf", shape)
    assert source.read_bytes() == again.read_bytes()
    assert "general.file_type" in gguf.GGUFReader(source).fields, "OpenVINO GenAI refuses a file without it"
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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Ceilings over little memory and few products, and the folder in which temporary files are made."""
    monkeypatch.setattr(ceilings, "STREAM_BYTES", 1 << 22)
    monkeypatch.setattr(ceilings, "_DOT_PRODUCTS", 1 << 16)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_whole_run(tiny_bundle: Bundles, small: Path, tmp_path: Path, capsys: Any) -> None:
    """The command, on a tiny model and a small stream: every row is there, and peers that are not here are said."""
    bundle, out = tiny_bundle("gemma3_text", "plain/model.gguf", "int4"), tmp_path / "r.json"
    assert main(["bench", str(bundle), "--rounds", "2", "--profile", "-o", str(out)]) == 0
    text = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert set(results["tokens_per_second"]) == {
        "prefill 1", "prefill 16", "prefill 128", "prefill 512", "decode at 16",
        *(f"decode, batch of {n}" for n in (1, 2, 4, 8, 16)),
    }  # fmt: skip
    for row in results["tokens_per_second"].values():
        assert len(row["samples"]["goinfer"]) == 2 == len(row["ceilings"]) and row["rates"]["goinfer"]["low"] > 0
    assert results["tokens_per_second"]["decode at 16"]["share"]["of"] == "reading"
    assert results["ceilings"]["target"] == results["target"] and results["memory"]["rss"] > 1e7
    assert {"start to first token", "open and verify"} == set(results["seconds"])
    for work in ("prefill 2048", "decode at 512", "decode at 4096"):
        assert f"not measured: {work}: the model holds 512 positions" in text
    assert "llama.cpp: not asked for" in text and "openvino: not asked for" in text
    for title in ("prefill 512", "decode at 16"):
        steps = {line["name"]: line for line in results["profiles"][title]}
        assert {"attn_qkv", "attn", "ffn_down", "lm_head"} <= set(steps) and steps["attn_qkv"]["products"] > 0
        assert all(0 <= line["waiting"] <= line["seconds"] for line in steps.values())
    assert "prefill 512" in text and "of dot products" in text and "of reading" in text
    assert results["machine"]["cores"] >= 1 and report.text(results) + "\n" == text
    bars = {bar["bar"]: bar for bar in results["bars"]}
    assert len(bars) == 13 and bars["prefill 512 / OpenVINO GenAI"]["why"] == "openvino absent"
    assert "13 numbers to reach: " in text


def test_lower_targets_have_their_own_ceilings(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every target that this machine runs beside the best one. Seen red with the best target's peak for all."""
    here = sorted((t for t in TARGETS.values() if runs_here(t)), key=lambda t: t.baseline)
    bundle, out = tmp_path / "t.giw", tmp_path / "r.json"
    source = Path(__file__).parents[2] / "testdata" / "tiny" / "llama" / "plain"
    goinfer.prequant(source, bundle, targets=[t.name for t in here])
    monkeypatch.setattr(process, "first_token", lambda *_: lambda: 1.0)
    measured: list[str] = []
    dots = ceilings.Ceilings.dots

    def watched(self: ceilings.Ceilings, threads: int, chains: int) -> float:
        measured.append(self.target.name)
        return dots(self, threads, chains)

    monkeypatch.setattr(ceilings.Ceilings, "dots", watched)
    assert main(["bench", str(bundle), "--rounds", "1", "-o", str(out)]) == 0
    found = json.loads(out.read_text())
    lower = found["lower_targets"]
    assert found["target"] == here[-1].name == found["ceilings"]["target"]
    assert set(lower) == {t.name for t in here[:-1]} and set(measured) == {t.name for t in here}
    for target, part in lower.items():
        assert part["work"] and all(set(row["ratios"]) == {here[-1].name} for row in part["work"].values())
        assert part["work"]["decode at 16"]["samples"][target][0] > 0 and part["dot_loops"]


def test_a_processor_without_a_clock_has_no_profile(tiny_bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen red without the check: a division by zero."""
    monkeypatch.setattr("goinfer.bench.profile._ticks_per_second", lambda: 0.0)
    with goinfer.load(tiny_bundle("llama", "plain", "int4")) as model, pytest.raises(NoClock, match="no counter"):
        profile(model.engine, lambda _: 1.0, 1, 1, 0)


def test_waiting_is_counted_only_where_threads_wait(tiny_bundle: Bundles) -> None:
    """One thread never waits. Seen red with the second clock read before the tiles instead of after them."""
    with goinfer.load(tiny_bundle("llama", "plain", "int4"), threads=1) as model:
        arm_ids = list(range(3, 200))

        def prefill(ready: Callable[[], None]) -> float:
            ready()
            model.forward(arm_ids)
            return 1.0

        lines = {line.name: line for line in profile(model.engine, prefill, 1, len(arm_ids), 0)}
        outside = lines.pop(OUTSIDE)
        steps = sum(line.seconds for line in lines.values())
        assert 0 < steps < 1 and outside.seconds == pytest.approx(1 - steps), "ticks are turned into seconds"
        assert sum(line.waiting for line in lines.values()) < 0.2 * steps
        assert lines["attn"].bytes == 0
        one = {line.name: line for line in profile(model.engine, prefill, 1, 1, 99)}
        assert one["attn"].bytes == 100 * 624, "one row reads the keys and values before it"
        assert model.engine._ctx["profile"][0] == 0, "off again"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["m.giw", "--synthetic", "1b"], "--synthetic: makes its own model"),
        (["--synthetic", "9b"], "shape 9b: unknown"),
        (["m.giw", "--vs", "llama.cpp"], "--vs llama.cpp: needs the peer's file"),
        (["m.giw", "--vs", "llama.cpp", "same"], "--vs: same is the file that this run compiles"),
        (["m.giw", "--vs", "vllm", "x.gguf"], "--vs vllm: no such peer: use one of llama.cpp, openvino"),
        (["m.giw", "--vs", "llama.cpp", "x.gguf", "--no-peers"], "--vs and --no-peers exclude each other"),
        (["m.giw", "--requantise", "q4_0"], "--requantise: changes the source"),
        (["--requantise", "q9"], "--requantise q9: unknown type: use q4_0"),
        (["m.giw", "--rounds", "0"], "0 is not in the range"),
    ],
)
def test_bad_usage(args: list[str], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch, llama_cpp=fakes.FakeArm, openvino=None)
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
