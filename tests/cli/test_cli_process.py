"""The program as a process: start-up, imports, pipes, signals, real files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# buffered output, as users have it: a closed pipe is then noticed late
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}

FAKE_RUN = """
import sys, goinfer
from tests.cli.cli_fakes import FakeModel, opener
from goinfer.cli.main import main
goinfer.load = opener(FakeModel(b"x" * 100000, context=10**6, delay={delay}))
code = main(["run", "m.giw", "-p", "hi", "-temp", "0", "-n", "{n}"])
"""


def python(code: str, **settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT, cwd=ROOT, text=True, stderr=subprocess.PIPE, **settings
    )


def goinfer(*args: str, module: str = "goinfer.cli.main") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)


def test_run_imports_nothing_heavy() -> None:
    heavy = "rich httpx httpx2 mlir llvmlite gguf starlette uvicorn torch transformers pydantic tokenizers"
    code = FAKE_RUN.format(delay=0, n=3) + (
        f"heavy = [m for m in {heavy.split()!r} if m in sys.modules]\n"
        "heavy += [m for m in sys.modules if m.startswith(('goinfer.compiler', 'goinfer.codegen', 'goinfer.serve'))]\n"
        "sys.exit(repr(heavy) if heavy else code)\n"
    )
    process = python(code, stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "xxx\n"), err


def test_import_is_light() -> None:
    code = "import sys, goinfer; sys.exit(repr(sorted(m for m in ('numpy', 'typer', 'jinja2') if m in sys.modules)))"
    process = python(code, stdout=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    assert err.strip() == "[]"


def test_a_closed_pipe_ends_quietly() -> None:
    process = python(FAKE_RUN.format(delay=0, n=50000) + "sys.exit(code)", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(5) == "xxxxx"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_pipe_that_closes_before_everything_is_printed(tiny_bundle) -> None:
    """`goinfer inspect --graph m.giw | head -1`, and views that come out in one print. 141 is what a shell reports of
    a program that SIGPIPE ended. Seen red with 1, the code of a failure."""
    bundle = str(tiny_bundle("llama", "plain", "int8int8"))
    for args in (["--graph"], ["--plan"], ["--json"], ["--plan", "--json"]):
        command = [sys.executable, "-m", "goinfer.cli.main", "inspect", bundle, *args]
        with subprocess.Popen(
            command, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, pipesize=4096
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.read(1)
            process.stdout.close()
            assert (process.wait(60), process.stderr.read()) == (141, b""), args


def test_an_error_into_a_closed_pipe_is_still_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "goinfer.cli.main", "run", "missing.giw", "-p", "x"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, stdout=writer, stderr=writer, timeout=60, check=False)
    os.close(writer)
    assert done.returncode == 1


@pytest.mark.parametrize("args", [["run", "--help"], ["--version"]])
def test_output_into_a_closed_pipe(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "goinfer.cli.main", *args],
        env=ENVIRONMENT, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 141 and done.stderr == b""


@pytest.mark.parametrize("module", ["goinfer.cli.main", "goinfer.cli.serve_main"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("args", "code"), [("--help", 0), ("nosuch.giw --nosuch", 2)])
def test_a_closed_stream_is_like_dev_null(module: str, closed: str, args: str, code: int) -> None:
    """Seen red: an internal error and a traceback, for there is no such stream in Python."""
    command = ["sh", "-c", f"exec {sys.executable} -m {module} {args} {closed}"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert done.returncode == code and "internal error" not in done.stderr and "Traceback" not in done.stderr
    assert bool(done.stdout) == (code == 0 and ">&-" not in closed.split()), done
    assert bool(done.stderr) == (code == 2 and "2>&-" not in closed), done


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams(closed: str, tiny_bundle) -> None:
    """Seen red: internal errors; the bundle, opened under the number of a closed stream, must not be printed to."""
    bundle = tiny_bundle("gemma3_text", "plain/model.gguf", "f32")
    before = bundle.read_bytes()
    for args, code in (("", 2), ("-p hi -n 3 --temp 0", 0)):
        line = f"exec {sys.executable} -m goinfer.cli.main run {bundle} {args} {closed}"
        done = subprocess.run(
            ["sh", "-c", line], env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == code, done
        assert ("no prompt" in done.stderr) == (code == 2 and "2>&-" not in closed) and "internal" not in done.stderr
    assert bundle.read_bytes() == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(sent: signal.Signals, code: int) -> None:
    process = python(FAKE_RUN.format(delay=0.01, n=50000) + "sys.exit(code)", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(5)
    process.send_signal(sent)
    process.stdout.read()
    assert process.wait(60) == code
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def test_text_the_terminal_cannot_show() -> None:
    code = """
import sys, goinfer
from tests.cli.cli_fakes import FakeModel, opener
from goinfer.cli.main import main
goinfer.load = opener(FakeModel("😀é".encode()))
sys.exit(main(["run", "m.giw", "-p", "hi", "-temp", "0"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}, cwd=ROOT, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"??\n", b"")


def test_a_piped_prompt_that_is_no_text() -> None:
    """Refused, as in an argument and in a request; before, the model was asked about replacement characters."""
    code = FAKE_RUN.format(delay=0, n=2).replace('"-p", "hi", ', "") + "sys.exit(code)"
    process = python(code, stdout=subprocess.PIPE, stdin=subprocess.PIPE, encoding="latin-1")
    out, err = process.communicate("\xff\xfe", timeout=60)
    assert (process.returncode, out) == (2, "") and "stdin: holds half a surrogate pair (U+DCFF at index 0)" in err


def test_an_argument_that_is_no_text() -> None:
    command = [sys.executable, "-m", "goinfer.cli.main", "run", "m.giw", "-p", b"ab\xff"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2 and b"--prompt: holds half a surrogate pair (U+DCFF at index 2)" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["run", "logits", "inspect", "verify"])
def test_bad_bundles(command: str, tmp_path: Path) -> None:
    text, empty = tmp_path / "text.giw", tmp_path / "empty.giw"
    text.write_text("not a bundle" * 100)
    empty.write_bytes(b"")
    extra = {"run": ["-p", "x"], "logits": ["-ids", "1", "-o", str(tmp_path / "o.npz")]}.get(command, [])
    for path in (text, empty, tmp_path / "missing.giw", tmp_path):
        done = goinfer(command, str(path), *extra)
        assert done.returncode == 1 and done.stdout == "", done
        assert done.stderr.startswith("goinfer: ") and done.stderr.count("\n") == 1, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.giw", "text.giw"]


def test_serve_refuses_before_it_opens_anything() -> None:
    serve = "goinfer.cli.serve_main"
    for args, message in (
        (["m.giw", "-host", "0.0.0.0"], "set --api-key or GOINFER_API_KEY"),
        (["m.giw", "-port", "99999"], "port 99999"),
        (["m.giw", "-weight-cache", "1"], "--stream-weights"),
        ([], "Missing argument"),
    ):
        done = goinfer(*args, module=serve)
        assert done.returncode == 2 and message in done.stderr, done
        assert done.stderr.startswith("goinfer-serve: ") and done.stderr.count("\n") == 1
    assert goinfer("missing.giw", "-port", "0", module=serve).returncode == 1


SERVE = """
import sys, goinfer
from tests.cli.cli_fakes import FakeModel, opener
from goinfer.cli.serve_main import main
goinfer.load = opener(FakeModel(b"hello", delay=0.01))
sys.exit(main(["dir/tiny.giw", "--port", "0", "-api-key", "k"]))
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_serve_answers_and_stops(sent: signal.Signals, code: int) -> None:
    import openai

    process = python(SERVE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    try:
        banner = process.stderr.readline()
        assert "tiny.giw on fake-target" in banner, banner
        client = openai.OpenAI(base_url=f"{banner.split()[0]}/v1", api_key="k", max_retries=0, timeout=20)
        assert client.models.list().data[0].id == "tiny"
        messages = [{"role": "user", "content": "hi"}]
        answer = client.chat.completions.create(model="tiny", messages=messages, temperature=0)
        assert answer.choices[0].message.content == "hello"
    finally:
        process.send_signal(sent)
        started = time.monotonic()
        out, err = process.communicate(timeout=30)
    assert (abs(process.returncode), out, err) in ((code, "", ""), (signal.SIGTERM, "", ""))
    assert time.monotonic() - started < 10


INTERRUPTED_IMPORT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.parametrize(("program", "module"), [("goinfer", "goinfer.cli.run"), ("goinfer_serve", "typer")])
def test_an_interrupt_while_modules_load_is_quiet(program: str, module: str) -> None:
    """Seen red: a traceback from the middle of an import."""
    code = INTERRUPTED_IMPORT.format(name=module) + f"from goinfer.cli import launch; sys.exit(launch.{program}())"
    process = python(code, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60) == ("", "") and process.returncode == -signal.SIGINT


def test_an_interrupt_while_mlir_loads_comes_after_it() -> None:
    """Seen red: an exception inside the start-up code of an extension module is a segmentation fault."""
    code = INTERRUPTED_IMPORT.format(name="mlir._mlir_libs._site_initialize_0") + """
from goinfer.codegen.mlir_context import load_mlir
try:
    load_mlir()
except KeyboardInterrupt:
    import mlir.ir
    mlir.ir.Context()
    print("interrupted")
"""
    process = python(code, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60) == ("interrupted\n", "") and process.returncode == 0
