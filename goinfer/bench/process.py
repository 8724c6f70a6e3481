"""Whole processes: from start to first token, and how much memory one holds."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from goinfer.bundle_format.errors import GoinferError

_OURS = "import sys; from goinfer.cli.launch import goinfer; sys.exit(goinfer())"

_LLAMA_CPP = """
import ctypes, sys, llama_cpp as lib
quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
lib.llama_log_set(quiet, ctypes.c_void_p(0))
lib.llama_backend_init()
model = lib.llama_model_load_from_file(sys.argv[1].encode(), lib.llama_model_default_params())
params = lib.llama_context_default_params()
params.n_ctx, params.n_threads, params.n_threads_batch = 2048, int(sys.argv[2]), int(sys.argv[2])
context = lib.llama_init_from_model(model, params)
ids = (ctypes.c_int32 * 8)(*range(100, 108))
assert lib.llama_decode(context, lib.llama_batch_get_one(ids, 8)) == 0
lib.llama_get_logits_ith(context, -1)
"""

_MEMORY = """
import json, sys, goinfer
model = goinfer.load(sys.argv[1], threads=int(sys.argv[2]), target=sys.argv[3] or None)
for _ in model.generate(list(range(100, 116)), max_new_tokens=16, temperature=0, ignore_eos=True):
    pass
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"rss": int(status["VmHWM"].split()[0]) * 1024, "kv": model.engine.info()["kv_bytes"]}))
"""


def first_token(bundle: Path, threads: int, target: str | None = None) -> Callable[[], float]:
    """Seconds of `goinfer run` for one token of a short prompt, interpreter and tokenizer included."""
    words = ["run", str(bundle), "--raw", "-p", "The capital of Japan is", "-n", "1", "--temp", "0"]
    words += ["--threads", str(threads), *(["--target", target] if target else [])]
    return lambda: _seconds([sys.executable, "-c", _OURS, *words])


def first_token_llama_cpp(path: Path, threads: int) -> Callable[[], float]:
    """Seconds of a Python process that loads a GGUF through llama-cpp-python and evaluates 8 ids."""
    return lambda: _seconds([sys.executable, "-c", _LLAMA_CPP, str(path), str(threads)])


def memory(bundle: Path, threads: int, target: str | None = None) -> dict[str, int]:
    """Bytes: peak resident size of a process that loads a bundle and decodes, and its KV cache."""
    command = [sys.executable, "-c", _MEMORY, str(bundle), str(threads), target or ""]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GoinferError(f"bench: measuring memory failed: {done.stderr.strip()[-300:]}")
    return {name: int(value) for name, value in json.loads(done.stdout).items()}


def _seconds(command: list[str]) -> float:
    """Wall time. Every program may keep compiled bytecode, as installed ones do; the round thrown away writes it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    taken = time.perf_counter() - started
    if done.returncode:
        raise GoinferError(f"bench: a measured process ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return taken
