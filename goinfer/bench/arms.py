"""Arms: the same pieces of work for goinfer and for each peer. Times are of one call, from Python, ids in, ids out."""

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import goinfer
from goinfer.bundle_format.errors import UsageError

CHUNK = 512
"""Rows of one prefill forward, for every arm."""

_SLOTS = 17


class Arm(Protocol):
    """One program with one model loaded. Ids are the arm's own business; every arm's vocabulary is at least 1000."""

    name: str

    def prefill(self, ids: Sequence[int]) -> float:
        """Seconds from an empty context to the logits after the last id."""

    def decode(self, context: Sequence[int], steps: int) -> float:
        """Seconds for `steps` greedy tokens after a context that is there already."""

    def close(self) -> None:
        """Give memory and threads back."""


class GoinferArm:
    """A bundle in this process."""

    name = "goinfer"

    def __init__(self, bundle: Path, threads: int, context: int, target: str | None = None) -> None:
        options = {"target": target} if target else {}
        self.model = goinfer.load(bundle, threads=threads, context=context, slots=_SLOTS, max_rows=CHUNK, **options)
        self._engine = self.model.engine

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        with self._engine.new_slot() as slot:
            started = time.perf_counter()
            self._engine.forward([(slot, ids)])
            return time.perf_counter() - started

    def decode(self, context: Sequence[int], steps: int, ready: Callable[[], None] = lambda: None) -> float:
        """See Arm. The greedy token comes from the program; its logits are written all the same.

        `ready` is called when the context is there.
        """
        with self._engine.new_slot() as slot:
            self._engine.forward([(slot, context)])
            token = self._engine.argmax()
            ready()
            started = time.perf_counter()
            for _ in range(steps):
                self._engine.forward([(slot, [token])])
                token = self._engine.argmax()
            return time.perf_counter() - started

    def batch(self, sequences: int, steps: int) -> float:
        """Seconds for `steps` greedy tokens of each of some sequences that run together."""
        slots = [self._engine.new_slot() for _ in range(sequences)]
        try:
            tokens = list(range(100, 100 + sequences))
            self._engine.forward([(slot, [t] * 16) for slot, t in zip(slots, tokens, strict=True)])
            started = time.perf_counter()
            for _ in range(steps):
                self._engine.forward([(slot, [t]) for slot, t in zip(slots, tokens, strict=True)])
                tokens = [self._engine.argmax(i) for i in range(sequences)]
            return time.perf_counter() - started
        finally:
            for slot in slots:
                slot.close()

    def close(self) -> None:
        """See Arm."""
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
        lib.llama_log_set(_silent, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        if not self._model:
            raise UsageError(f"llama.cpp: {path}: it does not load this file")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, CHUNK, CHUNK
        params.n_threads = params.n_threads_batch = threads
        self._context = lib.llama_init_from_model(self._model, params)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        self._clear()
        started = time.perf_counter()
        self._evaluate(ids)
        return time.perf_counter() - started

    def decode(self, context: Sequence[int], steps: int) -> float:
        """See Arm."""
        self._clear()
        token = self._evaluate(context)
        started = time.perf_counter()
        for _ in range(steps):
            token = self._evaluate([token])
        return time.perf_counter() - started

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
        self._ov, self._lib = openvino, openvino_genai
        try:
            self._pipeline = openvino_genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)
        except Exception as error:
            raise UsageError(f"openvino: {path}: {' '.join(str(error).split())[:200]}") from error

    def prefill(self, ids: Sequence[int]) -> float:
        """See Arm."""
        return float(self._run(ids, 1).get_ttft().mean) / 1e3

    def decode(self, context: Sequence[int], steps: int) -> float:
        """See Arm."""
        return float(self._run(context, steps).get_tpot().mean) / 1e3 * steps

    def close(self) -> None:
        """See Arm."""
        del self._pipeline

    def _run(self, ids: Sequence[int], steps: int) -> Any:
        config = self._lib.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = steps, True, False
        array = np.array([ids], np.int64)
        inputs = self._lib.TokenizedInputs(self._ov.Tensor(array), self._ov.Tensor(np.ones_like(array)))
        return self._pipeline.generate(inputs, config).perf_metrics


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _silent(_level: int, _text: bytes, _data: int) -> None:
    """Swallow the peer's log lines."""


PEERS: dict[str, Callable[[Path, int, int], Arm]] = {
    arm.name: arm for arm in (LlamaCppArm, OpenVinoArm)
}


def check_peer(name: str) -> None:
    """Raise UsageError for a name that is no peer."""
    if name not in PEERS:
        raise UsageError(f"--vs {name}: no such peer: use one of {', '.join(PEERS)}")


def open_peer(name: str, path: Path, threads: int, context: int) -> Arm:
    """A loaded peer. Raises UsageError for one that is not installed, and for a file that is missing or refused."""
    if not path.is_file():
        raise UsageError(f"--vs {name} {path}: no such file")
    return PEERS[name](path, threads, context)
