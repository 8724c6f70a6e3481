"""Decode and prefill rates of a bundle, interleaved with llama.cpp on a GGUF of the same model when it is installed.

    python benchmarks/decode_prefill.py [m.giw] [--llama-cpp model.Q4_0.gguf] [--rounds 5] [--json out.json]

Without a bundle the packaged SmolLM2-135M-Instruct is compiled to one with the default recipe.

Each round times A then B in one process: a prefill of 512 random tokens with the last row's logits, then 128 greedy
steps from an empty context. The first round is a warm-up and is dropped. Ratios are taken pair by pair; the report
gives their median and range. Absent peers are said. Figures are of this machine at this moment: only ratios travel.
"""

import argparse
import ctypes
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import goinfer
from goinfer.cli.demo import checkpoint

PREFILL, DECODE = 512, 128
Arm = Callable[[list[int]], tuple[float, float]]


def goinfer_arm(path: str, threads: int) -> Arm:
    """Rates (prefill tokens/s, decode tokens/s) of a bundle."""
    model = goinfer.load(path, threads=threads, context=2048)
    engine = model.engine

    def measure(ids: list[int]) -> tuple[float, float]:
        with engine.new_slot() as slot:
            start = time.perf_counter()
            engine.forward([(slot, ids)])
            prefill = PREFILL / (time.perf_counter() - start)
        with engine.new_slot() as slot:
            start = time.perf_counter()
            token = ids[0]
            for _ in range(DECODE):
                engine.forward([(slot, [token])])
                token = engine.argmax()
            return prefill, DECODE / (time.perf_counter() - start)

    return measure


def llama_cpp_arm(path: str, threads: int) -> Arm | None:
    """The same for llama.cpp, or None when its Python package is not installed."""
    try:
        import llama_cpp as lib
    except ImportError:
        return None
    lib.llama_log_set(_SILENT, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 2048, PREFILL, PREFILL
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))

    def evaluate(ids: list[int]) -> Any:
        array = (ctypes.c_int32 * len(ids))(*ids)
        if lib.llama_decode(context, lib.llama_batch_get_one(array, len(ids))) != 0:
            raise RuntimeError("llama_decode failed")
        return lib.llama_get_logits_ith(context, -1)

    def measure(ids: list[int]) -> tuple[float, float]:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        start = time.perf_counter()
        evaluate(ids)
        prefill = PREFILL / (time.perf_counter() - start)
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        start = time.perf_counter()
        token = ids[0]
        for _ in range(DECODE):
            token = int(np.ctypeslib.as_array(evaluate([token]), (vocab,)).argmax())
        return prefill, DECODE / (time.perf_counter() - start)

    return measure


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def _SILENT(_level: int, _text: bytes, _data: int) -> None:
    """Swallow the peer's log lines."""


def compare(arms: dict[str, Arm], vocab: int, rounds: int) -> dict[str, Any]:
    """Interleaved rounds of all arms; ratios of the first arm to each other one, pair by pair."""
    rng = np.random.default_rng(0)
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for i in range(rounds + 1):
        ids = [int(t) for t in rng.integers(100, vocab - 1000, PREFILL)]
        for name, arm in arms.items():
            measured = arm(ids)
            if i:
                rates[name].append(measured)
    first = next(iter(arms))
    report: dict[str, Any] = {"rates": rates, "ratios": {}}
    for name in list(arms)[1:]:
        for j, what in enumerate(("prefill512", "decode128")):
            pairs = [a[j] / b[j] for a, b in zip(rates[first], rates[name], strict=True)]
            report["ratios"][f"{what} {first}/{name}"] = [min(pairs), statistics.median(pairs), max(pairs)]
    return report


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?")
    parser.add_argument("--llama-cpp", metavar="GGUF")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.bundle is None:
        args.bundle = str(Path(tempfile.mkdtemp()) / "smollm2.giw")
        goinfer.prequant(checkpoint(), args.bundle)
    arms: dict[str, Arm] = {"goinfer": goinfer_arm(args.bundle, args.threads)}
    peer = llama_cpp_arm(args.llama_cpp, args.threads) if args.llama_cpp else None
    if peer is not None:
        arms["llama.cpp"] = peer
    else:
        print("llama.cpp: not measured (pass --llama-cpp MODEL.gguf and install llama-cpp-python)")
    with goinfer.load(args.bundle, threads=1) as model:
        vocab = model.engine.vocab
        target = model.engine.target
    report = compare(arms, vocab, args.rounds)
    report["machine"] = {"processor": platform.processor() or platform.machine(), "target": target,
                         "threads": args.threads, "goinfer": goinfer.__version__}  # fmt: skip
    for name, pairs in report["rates"].items():
        for j, what in enumerate(("prefill 512", "decode 128")):
            values = sorted(p[j] for p in pairs)
            middle = statistics.median(values)
            print(f"{name:10} {what}: median {middle:8.1f} tok/s, range {values[0]:.1f}..{values[-1]:.1f}")
    for what, (low, middle, high) in report["ratios"].items():
        print(f"ratio {what}: median {middle:.2f}, range {low:.2f}..{high:.2f} over {args.rounds} pairs")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
