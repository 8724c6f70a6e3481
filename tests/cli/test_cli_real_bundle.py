"""Commands over a compiled bundle, end to end."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import goinfer
from goinfer.bundle_format.errors import BundleError, UsageError
from goinfer.cli.main import main
from goinfer.cli.serve_main import main as serve
from goinfer.serve.served import ServedModel
from tests.cli.cli_fakes import result
from tests.conftest import TINY, native_target

Bundles = Callable[[str, str, str], Path]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    return lambda *args: result(capsys, main([str(arg) for arg in args]))


def test_prequant_verify_inspect_logits(call: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    bundle, out = tmp_path / "m.giw", tmp_path / "out.npz"
    source = TINY / "llama" / "plain"
    done = call("prequant", source, "-quant", "int8int8", "-o", bundle, "-target", native_target())
    assert done.code == 0 and "llama, int8int8" in done.out and "no tokenizer" in done.out, done.err
    done = call("verify", bundle)
    assert done.code == 0 and ": ok" in done.out
    done = call("logits", bundle, "--ids", "1,2,3", "-o", out, "--hidden")
    assert done.code == 0, done.err
    with np.load(out) as arrays:
        n, vocab = arrays["logits"].shape
        assert n == 3 and arrays["ids"].tolist() == [1, 2, 3] and arrays["logits"].dtype == np.float32
        assert arrays["hidden"].shape[1] == 3 and np.isfinite(arrays["hidden"]).all()
    facts = json.loads(call("inspect", bundle, "-json").out)
    assert facts["targets"] in ([native_target()], (native_target(),)) and facts["model"]["vocab"] == vocab
    assert {"name", "format", "error", "source_types"} <= set(facts["tensors"][0])
    done = call("run", bundle, "-p", "hi")
    assert done.code == 2 and "no tokenizer" in done.err
    done = call("logits", bundle, "-ids", f"1,{vocab}", "-o", out)
    assert done.code == 1 and f"{vocab}" in done.err and done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.giw", "out.npz"]


def test_inspect_views(call: Callable[..., SimpleNamespace], tiny_bundle: Bundles) -> None:
    bundle = tiny_bundle("llama", "plain", "int8int8")
    text = call("inspect", bundle).out
    for fact in ("llama, recipe int8int8", "layers", native_target(), "weights", "int8", "exact"):
        assert fact in text
    assert "giw." in call("inspect", bundle, "--graph").out
    plan = call("inspect", bundle, "--plan").out
    assert "step" in plan and "embed" in plan and "buffer" in plan
    names = call("inspect", bundle, "-asm", "list").out.split()
    matmul = next(name for name in names if name.startswith("matmul"))
    lines = call("inspect", bundle, "-asm", matmul).out.splitlines()
    assert len(lines) > 20 and lines[-1].split()[0].startswith("ret")
    last = json.loads(call("inspect", bundle, "-asm", names[-1], "-json").out)
    assert last["kernel"] == names[-1] and len(last["lines"]) > 2
    done = call("inspect", bundle, "-asm", "nosuch")
    assert done.code == 2 and "no kernel nosuch" in done.err
    done = call("inspect", bundle, "-asm", "list", "-target", "nosuch")
    assert done.code == 2 and "no target nosuch" in done.err


def test_a_damaged_bundle_fails_verify(
    call: Callable[..., SimpleNamespace], tiny_bundle: Bundles, tmp_path: Path
) -> None:
    data = bytearray(tiny_bundle("llama", "plain", "int8int8").read_bytes())
    facts = json.loads(call("inspect", tiny_bundle("llama", "plain", "int8int8"), "-json").out)
    weights = next(section for section in facts["sections"] if section["kind"] == "weights")
    data[weights["offset"] + 100] ^= 1
    bad = tmp_path / "bad.giw"
    bad.write_bytes(data)
    done = call("verify", bad)
    assert done.code == 1 and "weights" in done.err and done.out == ""
    report = json.loads(call("verify", bad, "-json").out)
    assert not report["ok"] and len(report["problems"]) == 1
    done = call("logits", bad, "-ids", "1", "-json")
    assert done.code == 1 and "weights" in done.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-quant", "int3"], 2, "int3"),
        (["-target", "nosuch"], 2, "nosuch"),
    ],
)
def test_prequant_refuses(
    call: Callable[..., SimpleNamespace], tmp_path: Path, args: list[str], code: int, message: str
) -> None:
    done = call("prequant", TINY / "llama" / "plain", "-o", tmp_path / "m.giw", *args)
    assert done.code == code and message in done.err and done.err.count("\n") == 1, done
    assert not list(tmp_path.iterdir())


def test_a_bundle_where_a_checkpoint_is_wanted(
    call: Callable[..., SimpleNamespace], tiny_bundle: Bundles, tmp_path: Path
) -> None:
    """Seen red: the bundle was called no GGUF file."""
    bundle = tiny_bundle("llama", "plain", "int8int8")
    for command in (["prequant", bundle, "-o", tmp_path / "m.giw"], ["gate", "bisect", bundle]):
        done = call(*command)
        assert (done.code, done.out) == (2, "") and f"{bundle}: is a .giw bundle already" in done.err, done
    with pytest.raises(UsageError, match=r"is a \.giw bundle already"):
        goinfer.prequant(bundle, tmp_path / "m.giw")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("source", ["model.gguf", "model.safetensors", "."])
def test_a_checkpoint_where_a_bundle_is_wanted(
    call: Callable[..., SimpleNamespace], capsys: pytest.CaptureFixture[str], source: str
) -> None:
    path = TINY / "llama" / "plain" / source
    for command in (
        ["run", path, "-p", "x"], ["verify", path], ["inspect", path], ["logits", path, "-ids", "1", "-json"],
    ):  # fmt: skip
        done = call(*command)
        assert (done.code, done.out) == (1, "") and "`goinfer prequant`" in done.err, done
        assert done.err.count("\n") == 1
    served = result(capsys, serve([str(path), "-port", "0"]))
    assert served.code == 1 and "`goinfer prequant`" in served.err
    with pytest.raises(BundleError, match="goinfer prequant"):
        goinfer.load(path)


def test_outputs_that_cannot_be_written_are_named(
    call: Callable[..., SimpleNamespace], tiny_bundle: Bundles, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "no" / "x", tmp_path / "file" / "x", tmp_path):
        done = call("prequant", TINY / "llama" / "plain", "-o", place)
        assert done.code == 1 and str(place) in done.err and done.err.count("\n") == 1, done
        done = call("logits", tiny_bundle("llama", "plain", "int8int8"), "-ids", "1", "-o", place)
        assert done.code == 1 and done.err.startswith(f"goinfer: cannot write: {place}: "), done
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_bundle_replaces_no_file_of_its_source(call: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """Seen red: config.json and the weights became a bundle, with exit code 0."""
    source = tmp_path / "source"
    shutil.copytree(TINY / "llama" / "plain", source)
    (source / "tokenizer.json").write_text("{}")
    (tmp_path / "blob").write_bytes((source / "model.safetensors").read_bytes())
    (source / "model.safetensors").unlink()
    (source / "model.safetensors").symlink_to(tmp_path / "blob")  # as in the cache of a hub
    (tmp_path / "link").symlink_to(source)
    for i in (1, 2):
        (tmp_path / f"m-{i:05d}-of-00002.gguf").write_bytes(b"GGUF\3\0\0\0" + bytes(100))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    part = tmp_path / "m-00001-of-00002.gguf"
    for start, out in (
        (source, source / "model.safetensors"), (source, source / "config.json"), (source, source / "tokenizer.json"),
        (source, tmp_path / "blob"), (source, tmp_path / "link" / "config.json"),
        (tmp_path / "link", source / "none/../config.json"),
        (part, part), (part, tmp_path / "m-00002-of-00002.gguf"), (source / "model.gguf", source / "." / "model.gguf"),
    ):  # fmt: skip
        done = call("prequant", start, "-o", out, "-target", native_target())
        assert (done.code, done.out) == (2, "") and "the bundle would replace" in done.err, (out, done)
        with pytest.raises(UsageError, match="the bundle would replace"):
            goinfer.prequant(start, out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_bundle_may_be_replaced_in_the_source_directory(
    call: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(TINY / "llama" / "plain", source)
    for quant in ("f32", "int8"):
        done = call("prequant", source, "-o", source / "m.giw", "-target", native_target(), "-quant", quant)
        assert done.code == 0, done
    assert "recipe int8" in call("inspect", source / "m.giw").out


def test_what_is_cheap_to_check_is_said_first(call: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    """Seen red: an unreadable checkpoint was reported before a recipe that no checkpoint could have had."""
    (tmp_path / "bad.gguf").write_text("no checkpoint")
    os.mkfifo(tmp_path / "pipe")
    for args, code, message in (
        (["-quant", "int3"], 2, "unknown recipe"), (["-target", "nosuch"], 2, "unknown target"),
        (["-o", tmp_path / "pipe"], 1, "no regular file"), (["-o", tmp_path / "no" / "m.giw"], 1, "its directory"),
    ):  # fmt: skip
        done = call("prequant", tmp_path / "bad.gguf", *args)
        assert (done.code, done.out) == (code, "") and message in done.err, done


def test_paths_that_are_none() -> None:
    """Seen red: TypeError from deep inside."""
    good = TINY / "llama" / "plain"
    for source, out in ((None, "m.giw"), (good, None), (3, "m.giw"), ("", "m.giw"), (good, ""), (good, b"m.giw")):
        with pytest.raises(UsageError, match="the path of"):
            goinfer.prequant(source, out)  # type: ignore[arg-type]
    for path in (None, 3, "", b"m.giw"):
        with pytest.raises(UsageError, match=r"the path of a \.giw bundle"):
            goinfer.load(path)  # type: ignore[arg-type]


def test_a_link_to_itself(call: Callable[..., SimpleNamespace], capsys, tmp_path: Path) -> None:
    """Seen red: prequant had an internal error."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for command in (
        ["run", loop, "-p", "x"], ["verify", loop], ["inspect", loop], ["logits", loop, "-ids", "1", "-json"],
        ["prequant", loop], ["prequant", loop, "-o", tmp_path / "m.giw"],
        ["prequant", TINY / "llama" / "plain", "-o", loop],
    ):  # fmt: skip
        done = call(*command)
        assert (done.code, done.out) == (1, "") and str(loop) in done.err and "internal" not in done.err, done
    assert str(loop) in result(capsys, serve([str(loop), "-port", "0"])).err
    assert loop.is_symlink() and len(list(tmp_path.iterdir())) == 1


def test_a_source_is_named_as_it_was_given(
    call: Callable[..., SimpleNamespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen red: only the last part of the path was named."""
    (tmp_path / "here").mkdir()
    (tmp_path / "text.py").write_text("print('no checkpoint')")
    monkeypatch.chdir(tmp_path / "here")
    done = call("prequant", "../text.py")
    assert done.code == 1 and done.err.startswith("goinfer: ../text.py: "), done


def test_bad_sources(call: Callable[..., SimpleNamespace], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "empty.gguf").write_bytes(b"")
    (source / "text.gguf").write_text("hello " * 100)
    (source / "folder").mkdir()
    for name in ("empty.gguf", "text.gguf", "folder", "missing.gguf"):
        done = call("prequant", source / name, "-o", tmp_path / "m.giw")
        assert done.code == 1 and done.out == "" and done.err.count("\n") == 1, (name, done)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_prompt_that_begins_with_bos_gets_no_second_one(
    call: Callable[..., SimpleNamespace], tiny_bundle: Bundles, tmp_path: Path
) -> None:
    """Every way in that encodes plain text. Seen red: `run --raw`, `logits --text` and the server's prompts had two."""
    bundle, out = tiny_bundle("gemma3_text", "plain/model.gguf", "f32"), tmp_path / "out.npz"
    with goinfer.load(bundle) as model:
        bos, served = model.tokenizer.bos, ServedModel("tiny", model.engine, model.vocabulary, 1, None)
        expected = {"ab": model.tokenizer.encode("ab"), "<s>ab": model.tokenizer.encode("<s>ab")[1:]}
        assert all(ids[0] == bos and ids.count(bos) == 1 for ids in expected.values())
        assert {text: served.prompt_ids(text) for text in expected} == expected
    for text, ids in expected.items():
        assert call("logits", bundle, "--text", text, "-o", out).code == 0
        with np.load(out) as arrays:
            assert arrays["ids"].tolist() == ids
        facts = json.loads(call("run", bundle, "--raw", "-p", text, "-n", "1", "-temp", "0", "-json").out)
        assert facts["prompt_tokens"] == len(ids)
