"""Which peers a run has, and what it makes for itself and takes away again: sources, bundles, temporary folders."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import goinfer
from goinfer.bench import arms, ceilings, models, outside, process
from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.cli import demo
from goinfer.cli.main import main
from tests.bench import fakes

Bundles = Callable[[str, str, str], Path]
TINY = Path(__file__).parents[2] / "testdata" / "tiny" / "gemma3_text" / "plain" / "model.gguf"


@pytest.fixture
def run(tiny_bundle: Bundles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`goinfer bench --quick` in which the demo's model and compiling it are tiny and processes take no time."""
    monkeypatch.setattr(ceilings, "STREAM_BYTES", 1 << 22)
    monkeypatch.setattr(ceilings, "_DOT_PRODUCTS", 1 << 16)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(demo, "checkpoint", lambda: TINY)
    bundle = tiny_bundle("gemma3_text", "plain/model.gguf", "int4")
    monkeypatch.setattr(models, "compiled", lambda source, *_: bundle)
    for name in ("first_token", "first_token_llama_cpp"):
        monkeypatch.setattr(process, name, lambda *_: lambda: 1.0)
    monkeypatch.setattr(process, "memory", lambda *_: {"rss": 10**8, "kv": 10**6})
    return lambda *args: main(["bench", "--quick", "--rounds", "1", "-o", str(tmp_path / "r.json"), *args])


def results(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "r.json").read_text())
    return found


def test_without_arguments_all_installed_peers_read_the_source(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """And absent ones are said, with what to install. Seen red with the default peers left empty."""
    fakes.install(monkeypatch, llama_cpp=fakes.FakeArm, openvino=None)
    assert run() == 0
    found, text = results(tmp_path), capsys.readouterr().out
    assert found["peers"] == {"llama.cpp": {"name": "model.gguf", "bytes": TINY.stat().st_size, "type": "BF16"}}
    row = found["tokens_per_second"]["prefill 512"]
    assert row["samples"]["llama.cpp"] == [512.0] and "llama.cpp" in row["ratios"]
    assert found["tokens_per_second"]["decode at 16"]["samples"]["llama.cpp"] == [32.0]
    assert "not measured: openvino: not installed: pip install openvino-package" in text
    assert "openvino: not asked for" not in text and found["source"]["name"] == "model.gguf"
    bars = {bar["bar"]: bar["why"] for bar in found["bars"]}
    assert "reads BF16: the bar is for Q4_0" in bars["prefill 512 / llama.cpp on Q4_0"]
    assert bars["prefill 512 / OpenVINO GenAI"] == "openvino absent"
    assert not list(tmp_path.glob("goinfer-bench-*"))


def test_a_peer_is_asked_for_the_same_work(monkeypatch: pytest.MonkeyPatch, run: Callable[..., int]) -> None:
    """One context for all rounds of a decode, and everything given back."""
    made: list[fakes.FakeArm] = []

    def make(*args: Any) -> fakes.FakeArm:
        made.append(fakes.FakeArm(*args))
        return made[0]

    fakes.install(monkeypatch, llama_cpp=make, openvino=None)
    assert run() == 0
    assert made[0].calls == [
        "open model.gguf", "prefill 512", "prefill 512", "hold 16", "decode 32", "decode 32", "release", "close",
    ]  # fmt: skip


def test_alone(run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    fakes.install(monkeypatch, llama_cpp=lambda *_: pytest.fail("opened"), openvino=None)
    assert run("--no-peers") == 0
    assert results(tmp_path)["peers"] == {} and "llama.cpp: not asked for" in capsys.readouterr().out


def test_a_peer_that_refuses_its_file_is_said(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """Not in the facts, not in the bars; the rest is measured."""

    def refuse(*_: Any) -> fakes.FakeArm:
        raise UsageError("openvino: model.gguf: no such architecture")

    fakes.install(monkeypatch, llama_cpp=fakes.FakeArm, openvino=refuse)
    assert run("--vs", "openvino", "same") == 0
    found = results(tmp_path)
    assert found["peers"] == {} and set(found["tokens_per_second"]["prefill 512"]["samples"]) == {"goinfer"}
    text = capsys.readouterr().out
    assert "not measured: openvino: model.gguf: no such architecture" in text
    assert "not measured: llama.cpp: not asked for" in text and text.count("not measured: openvino") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--vs", "openvino", "same"], "--vs openvino: not installed: pip install openvino-package"),
        (["--vs", "llama.cpp", "none.gguf"], "--vs llama.cpp none.gguf: no such file"),
        (["--requantise", "q4_0"], "--requantise q4_0 is done by llama.cpp: not installed: pip install"),
    ],
)
def test_what_was_asked_for_by_name_is_an_error_when_absent(
    args: list[str], message: str, run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Before anything is compiled. Seen red with check_peer called when the peers are opened."""
    missing = "requantise" in args[0]
    fakes.install(monkeypatch, llama_cpp=None if missing else fakes.FakeArm, openvino=None)
    monkeypatch.setattr(models, "compiled", lambda *_: pytest.fail("compiled first"))
    assert run(*args) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_ctrl_c_leaves_no_files(run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the middle of a measurement: no results, no folder, and the peer closed. Seen red without _Run.__exit__."""
    made: list[Any] = []

    class Interrupted(fakes.FakeArm):
        def prefill(self, ids: Any) -> float:
            made.append(self)
            assert list(tmp_path.glob("goinfer-bench-*"))
            raise KeyboardInterrupt

    fakes.install(monkeypatch, llama_cpp=Interrupted, openvino=None)
    assert run() == 130
    assert not list(tmp_path.glob("goinfer-bench-*")) and not (tmp_path / "r.json").exists()
    assert made[0].calls[-1] == "close"


def _fake_llama(result: int) -> ModuleType:
    """What requantising uses of llama_cpp: writes the input's bytes backwards."""
    module = ModuleType("llama_cpp")

    def quantise(source: bytes, out: bytes, _params: Any) -> int:
        Path(out.decode()).write_bytes(Path(source.decode()).read_bytes()[::-1])
        return result

    params = SimpleNamespace()
    vars(module).update(
        llama_log_set=lambda *_: None, llama_model_quantize_default_params=lambda: params,
        llama_model_quantize=quantise, params=params,
    )  # fmt: skip
    return module


def test_requantising_by_llama_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes.install(monkeypatch, llama_cpp=fakes.FakeArm, openvino=None)
    module = _fake_llama(0)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setattr(models.ctypes, "byref", lambda value: value)
    (tmp_path / "m.gguf").write_bytes(b"abc")
    out = models.requantised(tmp_path / "m.gguf", tmp_path, "q4_0", 2, lambda _: None)
    assert out.name == "m-Q4_0.gguf" and out.read_bytes() == b"cba"
    assert vars(module.params) == {"ftype": 2, "allow_requantize": True, "nthread": 2}
    monkeypatch.setitem(sys.modules, "llama_cpp", _fake_llama(1))
    with pytest.raises(GoinferError, match=r"llama\.cpp could not requantise m\.gguf"):
        models.requantised(tmp_path / "m.gguf", tmp_path, "q4_0", 2, lambda _: None)


def test_messages_of_peers_lose_their_folders() -> None:
    assert arms._without_paths("failed at /a/b-c/d.cpp:84:\n [load] x/y") == "failed at d.cpp:84: [load] x/y"


def test_packages_of_peers() -> None:
    assert set(arms._PACKAGES) == set(arms.PEERS)


def test_prequant_is_timed_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cold one sees an object cache that is empty each time, and the user's own is back afterwards.

    Seen red with the environment left as it was.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GOINFER_CACHE", "own")
    seen: list[str] = []

    def compile_one(source: Path, out: Path, quant: str) -> None:
        cache = Path(os.environ["GOINFER_CACHE"])
        assert source == TINY and quant == "int4" and out.parent.is_dir()
        seen.append("own" if cache == Path("own") else f"{len(list(cache.iterdir()))} files")
        if cache != Path("own"):
            (cache / "object").touch()

    monkeypatch.setattr(goinfer, "prequant", compile_one)
    assert outside._prequant(TINY) > 0 and outside._prequant_cold(TINY) > 0 and outside._prequant_cold(TINY) > 0
    assert seen == ["own", "0 files", "0 files"] and os.environ["GOINFER_CACHE"] == "own"
    assert not list(tmp_path.iterdir())
