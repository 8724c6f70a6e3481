"""Arms: the same pieces of work for goinfer and for each peer. Times are of one call, from Python, ids in, ids out."""

import ctypes
import importlib.util
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import goinfer
from goinfer.bundle_format.errors import UsageError
from goinfer.runtime.engine import Slot

CHUNK = 512
"""Rows of one prefill forward, for every arm."""

_SLOTS = 17


class Arm(Protocol):
    """One program with one model loaded. Ids are the arm's own business; every arm's vocabulary is at least 1000."""

    name: str

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from an empty context to the logits after the last id."""

    def hold(self, ids: Sequence[int]) -> None:
        """Fill a context that every `decode` from now on starts after."""

    def decode(self, steps: int) -> float:
        """Seconds for `steps` greedy tokens after what is held, and one more that is not timed."""

    def release(self) -> None:
        """Forget what is held."""

    def close(self) -> None:
        """Give memory and threads back."""


class GoinferArm:
    """A bundle in this process."""

    name = "goinfer"

    def __init__(self, bundle: Path, threads: int, context: int, target: str | None = None) -> None:
        options = {"target": target} if target else {}
        self.model = goinfer.load(bundle, threads=threads, context=context, slots=_SLOTS, max_rows=CHUNK, **options)
        self._engine = self.model.engine
        self._held: Slot | None = None
        self._next = 0

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        with self._engine.new_slot() as slot:
            started = time.perf_counter()
            self._engine.forward([(slot, ids)])
            return time.perf_counter() - started

    def hold(self, ids: Sequence[int]) -> None:
        """See Arm."""
        self.release()
        self._held = self._engine.new_slot()
        self._next = int(self._engine.greedy([(self._held, ids)])[0])

    def decode(self, steps: int, ready: Callable[[], None] = lambda: None) -> float:
        """See Arm. The greedy token comes from the program, without logits, as it does for a user's request.

        The first token of a fork copies the page that it writes to, so the clock starts, and `ready` is called, after
        it.
        """
        if self._held is None:
            raise UsageError("goinfer: nothing is held")
        with self._held.fork() as slot:
            token = int(self._engine.greedy([(slot, [self._next])])[0])
            ready()
            started = time.perf_counter()
            for _ in range(steps):
                token = int(self._engine.greedy([(slot, [token])])[0])
            return time.perf_counter() - started

    def release(self) -> None:
        """See Arm."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def batch(self, sequences: int, steps: int) -> float:
        """Seconds for `steps` greedy tokens of each of some sequences that run together."""
        slots = [self._engine.new_slot() for _ in range(sequences)]
        try:
            tokens = list(range(100, 100 + sequences))
            self._engine.forward([(slot, [t] * 16) for slot, t in zip(slots, tokens, strict=True)])
            started = time.perf_counter()
            for _ in range(steps):
                rows = [(slot, [t]) for slot, t in zip(slots, tokens, strict=True)]
                tokens = self._engine.greedy(rows).tolist()
            return time.perf_counter() - started
        finally:
            for slot in slots:
                slot.close()

    def close(self) -> None:
        """See Arm."""
        self.release()
        self.model.close()


class LlamaCppArm:
    """A GGUF in llama.cpp, through the C functions of the package llama-cpp-python."""

    name = "llama.cpp"

    def __init__(self, path: Path, threads: int, context: int) -> None:
        try:
            import llama_cpp as lib
        except ImportError as error:
            raise UsageError("llama.cpp: not installed: pip install llama-cpp-python") from error
        self._lib = lib
        lib.llama_log_set(silent, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self._model:
            raise UsageError(f"llama.cpp: {path.name}: it does not load this file")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = False  # its programs' own choice: a layer with a window keeps no more than the window
        self._held: list[int] = []
        self._next = 0
        self._context = lib.llama_init_from_model(self._model, params)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        self._clear()
        started = time.perf_counter()
        self._evaluate(ids)
        return time.perf_counter() - started

    def hold(self, ids: Sequence[int]) -> None:
        """See Arm."""
        self._clear()
        self._next = self._evaluate(ids)
        self._held = list(ids)

    def decode(self, steps: int) -> float:
        """See Arm. What the tokens wrote is removed; a cache that cannot do that is filled again by the next call."""
        memory = self._lib.llama_get_memory(self._context)
        if not self._lib.llama_memory_seq_rm(memory, 0, len(self._held), -1):
            self.hold(self._held)
        token = self._evaluate([self._next])
        started = time.perf_counter()
        for _ in range(steps):
            token = self._evaluate([token])
        return time.perf_counter() - started

    def release(self) -> None:
        """See Arm."""
        self._clear()

    def close(self) -> None:
        """See Arm."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def _clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def _evaluate(self, ids: Sequence[int]) -> int:
        """Append ids; the greedy token after the last."""
        for start in range(0, len(ids), CHUNK):
            part = list(ids[start : start + CHUNK])
            array = (ctypes.c_int32 * len(part))(*part)
            if self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(array, len(part))) != 0:
                raise UsageError("llama.cpp: llama_decode failed")
        logits = self._lib.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())


class OpenVinoArm:
    """A GGUF in OpenVINO GenAI, with the times that it reports itself: to the first token, and per token after it."""

    name = "openvino"

    def __init__(self, path: Path, threads: int, context: int) -> None:
        try:
            import openvino
            import openvino_genai
        except ImportError as error:
            raise UsageError("openvino: not installed: pip install openvino-genai") from error
        self._ov, self._lib, self._held = openvino, openvino_genai, list[int]()
        try:
            self._pipeline = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)
        except Exception as error:
            raise UsageError(f"openvino: {path.name}: {_without_paths(str(error))}") from error

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        return float(self._run(ids, 1).get_ttft().mean) / 1e3

    def hold(self, ids: Sequence[int]) -> None:
        """See Arm. The program takes a prompt and its tokens in one call: `decode` makes that call."""
        self._held = list(ids)

    def decode(self, steps: int) -> float:
        """See Arm."""
        return float(self._run(self._held, steps + 1).get_tpot().mean) / 1e3 * steps

    def release(self) -> None:
        """See Arm."""
        self._held = []

    def close(self) -> None:
        """See Arm."""
        del self._pipeline

    def _run(self, ids: Sequence[int], steps: int) -> Any:
        config = self._lib.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = steps, True, False
        array = np.array([ids], np.int64)
        inputs = self._lib.TokenizedInputs(self._ov.Tensor(array), self._ov.Tensor(np.ones_like(array)))
        return self._pipeline.generate(inputs, config).perf_metrics


def _without_paths(message: str) -> str:
    """A peer's message in one line, without folders of this machine or of the one it was built on."""
    return re.sub(r"(/[\w.+-]+)+/", "", " ".join(message.split()))[:200]


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def silent(_level: int, _text: bytes, _data: int) -> None:
    """A log callback that drops every line."""


PEERS: dict[str, Callable[[Path, int, int], Arm]] = {arm.name: arm for arm in (LlamaCppArm, OpenVinoArm)}

_PACKAGES = {"llama.cpp": ("llama_cpp", "llama-cpp-python"), "openvino": ("openvino_genai", "openvino-genai")}
"""Of each peer: the module that is imported, and what to install for it."""


def why_absent(name: str) -> str | None:
    """None for a peer that is installed, else what is missing and how to get it."""
    module, package = _PACKAGES[name]
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{name}: not installed: pip install {package}"


def check_peer(name: str, given: str, path: Path | None) -> None:
    """Raise UsageError for a name that is no peer or is not installed, and for a file that is not given or not there.

    `path` is None for a file that this run makes.
    """
    if name not in PEERS:
        raise UsageError(f"--vs {name}: no such peer: use one of {', '.join(PEERS)}")
    if not given:
        raise UsageError(f"--vs {name}: needs the peer's file: --vs {name} MODEL.gguf")
    absent = why_absent(name)
    if absent is not None:
        raise UsageError(f"--vs {absent}")
    if path is not None and not path.is_file():
        raise UsageError(f"--vs {name} {path}: no such file: give a GGUF file")


def open_peer(name: str, path: Path, threads: int, context: int) -> Arm:
    """A loaded peer. Raises UsageError for one that is not installed, and for a file that it refuses."""
    return PEERS[name](path, threads, context)
