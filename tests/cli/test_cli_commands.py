"""Commands over a fake model: what they print, write and refuse."""

import io
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import goinfer
from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.cli.main import main
from goinfer.runtime.model import Model
from tests.cli.cli_fakes import FakeModel, result
from tests.cli.conftest import Cli
from tests.runtime_text.text_fakes import BOS, COLUMNS, TURN


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_run_answers_through_the_chat_template(cli: Cli) -> None:
    model = FakeModel("Grüß 😀".encode())
    done = cli("run", "m.giw", "-p", "hi", "--temp", "0", "-system", "be kind", model=model)
    assert (done.code, done.out, done.err) == (0, "Grüß 😀\n", "")
    assert model.prompts == [[BOS, TURN, *b"s:be kind", TURN, *b"u:hi", TURN]]
    assert model.closed


def test_run_raw_continues_the_prompt(cli: Cli) -> None:
    model = FakeModel(b" there")
    done = cli("run", "m.giw", "-p", "hi\n", "--raw", "-temp", "0", model=model)
    assert done.out == " there\n" and model.prompts == []
    assert cli("run", "m.giw", "-p", "hi\n", "-temp", "0", model=FakeModel(b"ok", chat=False)).out == "ok\n"


def test_run_json(cli: Cli) -> None:
    done = cli("run", "m.giw", "-p", "hi", "--seed", "7", "-n", "3", "-json")
    facts = json.loads(done.out)
    assert facts["text"] == "hel" and facts["ids"] == list(b"hel") and facts["finish_reason"] == "length"
    assert facts["seed"] == 7 and facts["completion_tokens"] == 3 and facts["prompt_tokens"] == 7
    assert facts["prompt_seconds"] >= 0 and done.err == ""


def test_run_reports_a_seed_nobody_chose(cli: Cli) -> None:
    done = cli("run", "m.giw", "-p", "hi", "-json")
    seed = json.loads(done.out)["seed"]
    assert done.err == f"seed {seed}\n"
    assert json.loads(cli("run", "m.giw", "-p", "hi", "-json", "-seed", str(seed)).out)["text"] == "hello"


def test_run_stats_and_banner_go_to_stderr(cli: Cli) -> None:
    done = cli("run", "m.giw", "-p", "hi", "-temp", "0", "--stats")
    assert done.out == "hello\n"
    assert "fake-target, 2 threads, context 128, kv f16" in done.err
    assert "prompt 7 tokens" in done.err and "output 6 tokens" in done.err and "tokens/s" in done.err


def test_run_passes_options_on(cli: Cli) -> None:
    model = FakeModel()
    options = ["-threads", "3", "-kv", "f32", "-context", "64", "-target", "x", "-verify", "off", "-temp", "0"]
    cli("run", "dir/m.giw", "-p", "hi", *options, model=model)
    assert model.loaded_with == {
        "path": "dir/m.giw", "threads": 3, "kv": "f32", "context": 64, "target": "x", "verify": "off", "slots": 1,
    }  # fmt: skip


def test_run_ends_an_answer_that_does_not_end(cli: Cli) -> None:
    """Seen red: a model that repeats itself filled the whole context."""
    endless = FakeModel(b"x" * 2000, context=4096)
    done = cli("run", "m.giw", "-p", "hi", "-temp", "0", model=endless)
    assert done.out == "x" * 512 + "\n" and done.err == "cut after 512 tokens: -n allows more\n"
    done = cli("run", "m.giw", "-p", "hi", "-temp", "0", "-n", "600", model=FakeModel(b"x" * 2000, context=4096))
    assert done.out == "x" * 600 + "\n" and done.err == ""


def test_run_says_that_the_context_is_full(cli: Cli, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen red: an answer that the context cut looked complete. A limit that was asked for and met is no news."""
    told = "cut: the context of 40 tokens is full: --context may allow more\n"
    for args in ([], ["-n", "600"], ["-json"]):
        done = cli("run", "m.giw", "-p", "hi", "-temp", "0", *args, model=FakeModel(b"x" * 2000, context=40))
        assert done.code == 0 and done.out and done.err == told
    for args in (["-n", "5"], ["-n", "0"]):
        done = cli("run", "m.giw", "-p", "hi", "-temp", "0", *args, model=FakeModel(b"x" * 2000, context=40))
        assert done.code == 0 and done.err == ""
    assert told in talk(capsys, monkeypatch, FakeModel(b"x" * 2000, context=40), ["hi"]).err


def test_run_stop(cli: Cli) -> None:
    assert cli("run", "m.giw", "-p", "hi", "-temp", "0", "-stop", "zz", "-stop", "ll").out == "he\n"


def test_run_reads_a_piped_prompt(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """`echo piped | goinfer run` asks what `-p piped` asks: one final newline goes, and no other. Seen red before."""
    for typed, asked in (("piped\n", b"u:piped"), ("piped", b"u:piped"), (" two\n\n", b"u: two\n")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        model = FakeModel()
        assert cli("run", "m.giw", "-temp", "0", model=model).out == "hello\n"
        assert bytes(model.prompts[0][2:-1]) == asked
    for nothing in ("", "\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(nothing))
        done = cli("run", "m.giw")
        assert done.code == 2 and "no prompt" in done.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\udcff"))
    done = cli("run", "m.giw")
    assert done.code == 2 and "stdin: holds half a surrogate pair (U+DCFF at index 1)" in done.err


def test_run_prints_nothing_when_nothing_is_asked_for(cli: Cli) -> None:
    """Seen red: an empty line, a seed that nothing was drawn with, and a prompt read at a million tokens a second."""
    done = cli("run", "m.giw", "-p", "hi", "-n", "0", "--stats")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[1:] == ["prompt 7 tokens; output 0 tokens"]
    facts = json.loads(cli("run", "m.giw", "-p", "hi", "-n", "0", "-json").out)
    assert facts["text"] == "" and facts["finish_reason"] == "length" and facts["prompt_tokens_per_second"] is None
    assert cli("run", "m.giw", "-p", "hi", "-temp", "0", model=FakeModel(b"")).out == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "x", "-temp", "-1"], "--temp: -1.0 is outside"),
        (["-p", "x", "-temp", "hot"], "hot"),
        (["-p", "x", "-top-p", "0"], "--top-p: 0 "),
        (["-p", "x", "-threads", "0"], "threads"),
        (["-p", "x", "-stop", "a", "-stop", ""], "--stop: is empty"),
        (["-p", "x", "-temp", "nan"], "--temp: nan is outside"),
        (["-p", "x", "-temp", "inf"], "--temp: inf is outside"),
        (["-p", "x", "-top-p", "1.1"], "--top-p: 1.1 is outside"),
        (["-p", "x", "-min-p", "-0.1"], "--min-p: -0.1 is outside"),
        (["-p", "x", "-top-k", "-1"], "--top-k: -1 is outside"),
        (["-p", "x", "-top-k", f"{2**31}"], "--top-k: 2147483648 is outside"),
        (["-p", "x", "-repeat-penalty", "0"], "--repeat-penalty: 0.0 is outside"),
        (["-p", "x", "-presence-penalty", "3"], "--presence-penalty: 3.0 is outside"),
        (["-p", "x", "-frequency-penalty", "-3"], "--frequency-penalty: -3.0 is outside"),
        (["-p", "x", "-seed", f"{2**64}"], "--seed: 18446744073709551616 is outside"),
        (["-p", "x", "-seed", f"{-(2**63) - 1}"], "--seed: -9223372036854775809 is outside"),
        (["-p", "x", "-seed", "9" * 500], "--seed: a number of 1661 bits is outside"),
        (["-p", "x", "-n", "-1"], "--max-tokens: -1 is outside"),
        (["-p", "x", "-n", f"{2**31}"], "--max-tokens: 2147483648 is outside"),
        (["-p", "x", "-n", "2.5"], "2.5"),
        (["-p", "x", "-context", "0"], "--context"),
        (["-p", ""], "--prompt: is empty"),
        (["-p", "", "-raw"], "--prompt: is empty"),
        (["-p", "a\udcff"], "--prompt: holds half a surrogate pair (U+DCFF at index 1)"),
        (["-p", "x", "-system", "\udcff"], "--system: holds half"),
        (["-p", "x", "-stop", "\udcff"], "--stop: holds half"),
        (["-p", "x", "-xyz"], "No such option"),
        (["-p"], "requires an argument"),
        (["-p", "x", "-system", "y", "-raw"], "--system"),
        (["-p", "x" * 200], "limit is 128"),
    ],
)
def test_run_refuses_in_one_line(cli: Cli, args: list[str], message: str) -> None:
    done = cli("run", "m.giw", *args)
    assert message in done.err and done.out == ""
    assert done.err.startswith("goinfer: ") and done.err.count("\n") == 1
    assert done.code == (1 if "limit" in message else 2)


def talk(capsys, monkeypatch: pytest.MonkeyPatch, model: FakeModel, lines: list[str], *args: str):
    monkeypatch.setattr(goinfer, "load", lambda path, **options: model)
    monkeypatch.setattr(sys, "stdin", Terminal())
    answers = iter(lines)

    def ask(_prompt: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", ask)
    return result(capsys, main(["run", "m.giw", "-temp", "0", *args]))


def test_a_conversation_keeps_its_state(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(b"ok")
    done = talk(capsys, monkeypatch, model, ["one", "two", "", "/clear", "three"], "-system", "S")
    assert done.code == 0 and done.out == "ok\nok\nok\n\n"
    head = [BOS, TURN, *b"s:S", TURN]
    assert model.prompts == [
        [*head, *b"u:one", TURN],
        [*head, *b"u:one", TURN, *b"a:ok", TURN, *b"u:two", TURN],
        [*head, *b"u:three", TURN],
    ]
    assert sum(map(sum, model.engine.batches)) == sum(
        [
            len(model.prompts[0]) + 2,  # all of it, and the answer
            len(model.prompts[1]) - len(model.prompts[0]) + 2,  # what is new
            len(model.prompts[2]) - len([*head, *b"u:"]) + 2,  # what differs from the turn before
        ]
    )


def test_a_conversation_survives_an_overflow_and_an_interrupt(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(b"ok", context=40)
    done = talk(capsys, monkeypatch, model, ["x" * 50, "fine"])
    assert done.code == 0 and done.out == "ok\n\n" and done.err.count("limit is 40") == 1
    model = FakeModel(b"abcdef")
    forward = model.engine.forward

    def interrupted(batch, wanted="last"):
        if len(model.engine.batches) == 4 and not model.engine.interrupted:
            model.engine.interrupted = True
            raise KeyboardInterrupt
        return forward(batch, wanted)

    model.engine.interrupted, model.engine.forward = False, interrupted
    done = talk(capsys, monkeypatch, model, ["one", "two"])
    assert done.code == 0 and done.out.splitlines()[0] == "abcd" and done.out.splitlines()[1] == "abcdef"
    assert model.prompts[1][:-1] == [BOS, TURN, *b"u:one", TURN, *b"a:abcd", TURN, *b"u:two"]


def test_a_bundle_that_cannot_chat_says_so_at_once(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    done = talk(capsys, monkeypatch, FakeModel(chat=False), ["hi"])
    assert done.code == 2 and "no chat template" in done.err and done.out == ""


def test_logits(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    done = cli("logits", "m.giw", "--ids", "1,2,3", "-o", str(out))
    assert done.code == 0 and f"3 positions, vocabulary {COLUMNS}" in done.out
    with np.load(out) as arrays:
        assert sorted(arrays) == ["ids", "logits"]
        assert arrays["ids"].tolist() == [1, 2, 3]
        assert arrays["logits"].shape == (3, COLUMNS) and arrays["logits"].dtype == np.float32
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
    again = tmp_path / "again.npz"
    done = cli("logits", "m.giw", "-ids", str(out), "-o", str(again), "-hidden", "-json")
    assert json.loads(done.out)["shapes"] == {"ids": [3], "logits": [3, COLUMNS], "hidden": [4, 3, 8]}
    done = cli("logits", "m.giw", "-text", "ab", "-json")
    assert json.loads(done.out)["shapes"]["ids"] == [3]  # with the beginning of the sequence


def test_logits_refuses(cli: Cli, tmp_path: Path) -> None:
    out = str(tmp_path / "o.npz")
    bad = tmp_path / "bad.npz"
    bad.write_text("no")
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, ids=np.ones((2, 2)))
    other = tmp_path / "other.npz"
    np.savez(other, x=np.ones(2))
    huge = tmp_path / "huge.npz"
    np.savez(huge, ids=np.full(2, 2**64 - 1, np.uint64))
    for args, message, code in (
        (["-ids", "1,x", "-o", out], "want 1,2,3", 2),
        (["-ids", "", "-o", out], "want 1,2,3", 2),
        (["-ids", f"1,{10**20}", "-o", out], f"--ids: {10**20} is outside 0 to", 2),  # seen red: an internal error
        (["-ids", str(huge), "-o", out], "is outside 0 to", 2),
        (["-ids", "1", "-o", ""], "a path is empty", 2),  # seen red: "."
        (["-o", out], "either --ids or --text", 2),
        (["-ids", "1", "-text", "x", "-o", out], "either --ids or --text", 2),
        (["-ids", "1"], "-o", 2),
        (["-ids", str(bad), "-o", out], "not an .npz", 1),
        (["-ids", str(wrong), "-o", out], "row of integers", 2),
        (["-ids", str(other), "-o", out], "no array `ids`", 2),
        (["-ids", str(tmp_path / "none.npz"), "-o", out], "No such file", 1),
        (["-ids", "1", "-o", str(tmp_path / "no" / "o.npz")], f"cannot write: {tmp_path}/no/o.npz: its directory", 1),
        (["-ids", "1", "-o", str(bad / "o.npz")], f"cannot write: {bad}/o.npz: Not a directory", 1),
        (["-ids", "1", "-o", str(tmp_path)], f"cannot write: {tmp_path}: it is a directory", 1),
        (["-text", "", "-o", out], "--text: is empty", 2),
        (["-text", "\udcff", "-o", out], "--text: holds half", 2),
    ):
        done = cli("logits", "m.giw", *args)
        assert (done.code, done.out) == (code, "") and message in done.err, done
        assert done.err.count("\n") == 1
    assert not Path(out).exists()


def test_logits_names_the_file_when_the_folder_takes_none(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen red: the message had the name of a temporary file."""

    def refuse(path: object, *_flags: int) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("goinfer.bundle_format.output.os.open", refuse)
    done = cli("logits", "m.giw", "-ids", "1", "-o", "o.npz")
    assert done.err == "goinfer: cannot write: o.npz: Permission denied: choose another place\n"


def test_logits_writes_regular_files_only(cli: Cli, tmp_path: Path) -> None:
    """Seen red: a pipe, a socket, a link and the bundle itself were replaced by the .npz, with exit code 0."""
    pipe, endpoint, bundle, ids = (tmp_path / name for name in ("pipe", "socket", "m.giw", "ids.npz"))
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(endpoint))
    bundle.write_bytes(b"weights")
    np.savez(ids, ids=np.arange(2))
    for name, target in (("to_pipe", pipe), ("to_bundle", bundle), ("loop", tmp_path / "loop")):
        (tmp_path / name).symlink_to(target)
    os.link(bundle, tmp_path / "same")
    before = {path.name: path.lstat().st_ino for path in tmp_path.iterdir()}
    for name, message, code in (
        ("pipe", "no regular file", 1), ("socket", "no regular file", 1), ("to_pipe", "no regular file", 1),
        ("loop", "symbolic links", 1), ("m.giw", "replace its source", 2), ("to_bundle", "replace its source", 2),
        ("same", "replace its source", 2), ("ids.npz", "replace its source", 2),
    ):  # fmt: skip
        done = cli("logits", str(bundle), "-ids", str(ids), "-o", str(tmp_path / name))
        assert (done.code, done.out) == (code, "") and message in done.err and done.err.count("\n") == 1, done
    assert {path.name: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_logits_follows_a_link(cli: Cli, tmp_path: Path) -> None:
    """Seen red: the link became a file. A file that exists is replaced, one that does not is made."""
    link, real = tmp_path / "link.npz", tmp_path / "folder" / "real.npz"
    real.parent.mkdir()
    link.symlink_to(real)
    for ids in ("1,2", "3"):
        assert cli("logits", "m.giw", "-ids", ids, "-o", str(link)).code == 0
        with np.load(real) as arrays:
            assert ",".join(map(str, arrays["ids"])) == ids
    assert link.is_symlink() and [path.name for path in real.parent.iterdir()] == ["real.npz"]


@pytest.mark.parametrize(
    "args",
    [
        ["run", "", "-p", "x"], ["verify", ""], ["inspect", ""], ["logits", "", "-ids", "1", "-json"],
        ["prequant", ""], ["prequant", "m.gguf", "-o", ""], ["demo", "-keep", ""], ["gate", "bisect", ""],
    ],
)  # fmt: skip
def test_an_empty_path_is_no_path(cli: Cli, args: list[str]) -> None:
    """Seen red: it meant the current directory."""
    done = cli(*args)
    assert (done.code, done.out) == (2, "") and done.err == "goinfer: a path is empty: give the name of a file\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--graph", "--plan"], "--graph and --plan exclude each other"),
        (["--graph", "--asm", "list"], "--graph and --asm exclude each other"),
        (["--plan", "--asm", "list", "--json"], "--plan and --asm exclude each other"),
        (["--graph", "--plan", "--asm", "x"], "--graph and --plan and --asm"),
        (["--target", "x86-64-v3"], "--target: has a meaning only together with --asm"),
        (["--graph", "--target", "x86-64-v3"], "--target: has a meaning only together with --asm"),
    ],
)
def test_inspect_shows_one_thing(cli: Cli, args: list[str], message: str) -> None:
    done = cli("inspect", "m.giw", *args)
    assert (done.code, done.out) == (2, "") and message in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-port", "-1"], "port -1"),
        (["-port", f"{10**30}"], "port 1000"),
        (["-slots", "0"], "--slots"),
        (["-slots", "257"], "--slots"),
        (["-context", "0"], "--context"),
        (["-threads", "0"], "--threads"),
        (["-weight-cache", "1"], "--stream-weights"),
        (["-stream-weights", "-weight-cache", "nan"], "--weight-cache nan"),
        (["-stream-weights", "-weight-cache", "inf"], "--weight-cache inf"),
        (["-stream-weights", "-weight-cache", "0"], "--weight-cache 0"),
        (["-stream-weights", "-weight-cache", "1e300"], "--weight-cache 1e+300"),
        (["-name", ""], "--name: is empty"),
        (["-name", "\udcff"], "--name: holds half"),
        (["-api-key", ""], "api key"),
    ],
)
def test_serve_refuses_in_one_line(capsys, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str) -> None:
    """Before a model is opened. Seen red: an infinite cache was an internal error, and only after the model loaded."""
    from goinfer.cli import serve_main

    monkeypatch.setattr(serve_main, "load", lambda *_args, **_options: pytest.fail("the model was opened"))
    done = result(capsys, serve_main.main(["m.giw", *args]))
    assert (done.code, done.out) == (2, "") and message in done.err and done.err.count("\n") == 1, done


def test_a_file_name_that_is_no_text_names_a_model() -> None:
    from goinfer.cli.serve_main import _model_name

    assert _model_name(None, Path("dir/caf\udce9.giw")) == "caf?" and _model_name("x", Path("m.giw")) == "x"


def test_a_full_disk_leaves_no_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    done = cli("logits", "m.giw", "-ids", "1", "-o", str(tmp_path / "o.npz"))
    assert done.code == 1 and done.err.startswith(f"goinfer: no room for the logits: {tmp_path / 'o.npz'}: No space")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list:
    from dataclasses import make_dataclass

    fields = {
        "path": Path("m.giw"), "family": "llama", "recipe": "int4", "targets": ["x86-64-v3"], "source_bytes": 10**8,
        "bundle_bytes": 9 * 10**7, "weight_bytes": 8 * 10**7, "parameters": 134515008, "bits_per_weight": 4.9,
        "tokenizer": False, "notes": ("the head is the embedding table",),
    }  # fmt: skip
    calls: list = []

    def prequant(source, out, quant="int4", targets=None, progress=None):
        calls.append((str(source), str(out), quant, targets))
        if progress is not None:
            for i in range(3):
                progress("kernels", f"kernel_{i}", i + 1, 3)
                progress("weights", f"blk.{i}.attn_q.weight", (i + 1) * 10**6, 3 * 10**6)
        return make_dataclass("Summary", fields)(**fields)

    monkeypatch.setattr(goinfer, "prequant", prequant)
    return calls


def test_prequant(cli: Cli, compiled: list) -> None:
    done = cli("prequant", "model.gguf", "-quant", "int8", "-o", "m.giw", "-target", "a", "-target", "b")
    assert compiled == [("model.gguf", "m.giw", "int8", ["a", "b"])]
    assert done.code == 0 and done.err == ""
    for fact in ("llama, int4, 134.5 M parameters", "100 MB -> bundle 90 MB", "4.90 bits a weight", "x86-64-v3"):
        assert fact in done.out
    assert "no tokenizer" in done.out and "the head is the embedding table" in done.out
    cli("prequant", "some/model.v1.gguf")
    assert compiled[-1] == ("some/model.v1.gguf", "model.v1.giw", "int4", None)
    facts = json.loads(cli("prequant", "model.gguf", "-json").out)
    assert facts["path"] == "m.giw" and facts["bits_per_weight"] == 4.9 and facts["seconds"] >= 0
    assert cli("prequant", "model.gguf", "-q").out == ""


def test_prequant_draws_a_bar_on_a_terminal(cli: Cli, compiled: list, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["prequant", "model.gguf"]) == 0
    assert "blk.2.attn_q.weight" in terminal.getvalue() and "100%" in terminal.getvalue()


def test_the_default_bundle_of_a_directory(cli: Cli, compiled: list, monkeypatch, tmp_path: Path) -> None:
    """Named after it, and written where the user is. Seen red: a link that leads nowhere was an internal error."""
    (tmp_path / "model.v1").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path / "model.v1")
    cli("prequant", ".")
    assert cli("prequant", "../loop").code == 0
    assert [call[1] for call in compiled] == ["model.v1.giw", "loop.giw"]
    assert "in the current directory" in " ".join(cli("prequant", "-h").out.split())


def test_run_without_a_tokenizer_points_to_what_takes_ids(cli: Cli) -> None:
    """Seen red: it said to pass token ids, and run takes none."""
    with pytest.raises(UsageError, match="`goinfer logits --ids`"):
        Model.tokenizer.fget(SimpleNamespace(_tokenizer=None))  # type: ignore[attr-defined]
    done = cli("run", "m.giw", "-p", "hi", model=FakeModel(chat=False, tokenizer=False))
    assert done.code == 2 and "`goinfer logits --ids`" in done.err


def test_errors_are_one_line_with_a_code(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: BaseException):
        def load(path, **options):
            raise error

        return load

    from goinfer.cli import options

    for error, code, text in (
        (GoinferError("m.giw: truncated:\n  copy it again"), 1, "m.giw: truncated: copy it again"),
        (FileNotFoundError(2, "No such file or directory", "m.giw"), 1, "m.giw: No such file or directory"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, ""),
        (RuntimeError("boom"), 1, "internal error: RuntimeError: boom (GOINFER_TRACEBACK=1 shows where)"),
        (ModuleNotFoundError("No module named 'mlir'", name="mlir"), 1, "mlir is not installed: pip install 'goinf"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 1, "internal error: UnicodeDecodeError"),
    ):
        monkeypatch.setattr(options, "load", failing(error))
        monkeypatch.setattr("goinfer.cli.run.load", failing(error))
        done = cli("run", "m.giw", "-p", "x")
        assert done.code == code and text in done.err and done.out == "", done
        assert done.err.count("\n") == (1 if text else 0)


@pytest.mark.parametrize("args", [[], ["nosuch"], ["-nosuch"], ["run"], ["prequant"], ["logits"]])
def test_bad_usage_is_code_2(cli: Cli, args: list[str]) -> None:
    done = cli(*args)
    assert done.code == 2 and done.err.startswith("goinfer: ") and done.err.count("\n") == 1, done


@pytest.mark.parametrize("args", [["-version"], ["--version"], ["-h"], ["-help"], ["run", "-h"], ["prequant", "-help"]])
def test_help_and_version(cli: Cli, args: list[str]) -> None:
    done = cli(*args)
    assert done.code == 0 and done.out and not done.err


def test_gates_print_what_they_return(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from goinfer.gates import fresh, parity

    calls: list = []

    def measured(families, record, tiny_only, log):
        calls.append((families, record, tiny_only))
        return "parity: 1 passed", {"exit_code": 3}, 3

    monkeypatch.setattr(parity, "main_report", measured)
    monkeypatch.setattr(fresh, "main_report", lambda families: (f"fresh {families}", {"rows": 1}, 0))
    done = cli("gate", "parity", "-family", "llama,qwen2", "--family", "gemma3_text", "-tiny")
    assert (done.code, done.out, done.err) == (3, "parity: 1 passed\n", "")
    assert calls == [(["llama", "qwen2", "gemma3_text"], False, True)]
    assert json.loads(cli("gate", "parity", "-json").out) == {"exit_code": 3}
    assert cli("gate", "fresh").out == "fresh None\n"
    done = cli("gate", "fresh", "--family", "nosuch,llama")
    assert done.out == "fresh ['nosuch', 'llama']\n"
