"""A model's end: closed, or dropped without closing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import goinfer
from goinfer.bundle_format.errors import GoinferError


def test_a_closed_model_refuses_to_run(tiny_bundle: Callable[..., Path]) -> None:
    """Seen red without the refusal: the forward waits at a barrier for threads that have ended."""
    opened = goinfer.load(tiny_bundle("llama", "plain", "int4"), threads=2)
    pieces = opened.generate([1, 2, 3], max_new_tokens=9, ignore_eos=True)
    next(pieces)
    opened.close()
    opened.close()
    for run in (lambda: opened.forward([1]), lambda: next(pieces)):
        with pytest.raises(GoinferError, match="closed"):
            run()


def test_models_that_nobody_closes_end_their_threads(tiny_bundle: Callable[..., Path]) -> None:
    """An engine outlives its model. Seen red without the finalizers: dropping a model unmaps code that its worker is
    about to enter (a crash), and its file stays open."""
    code = (
        "import goinfer, os, sys, threading\n"
        "goinfer.load(sys.argv[1], threads=3).close(); files = len(os.listdir('/proc/self/fd'))\n"
        "for i in range(40):\n    m = goinfer.load(sys.argv[1], threads=3)\n    del m\n"
        "m = goinfer.load(sys.argv[1], threads=3); m.forward([1]); del m\n"
        "engine = goinfer.load(sys.argv[1], threads=3).engine\n"
        "with engine.new_slot() as slot: engine.forward([(slot, [1, 2])])\n"
        "del slot, engine\n"
        "print(threading.active_count(), len(os.listdir('/proc/self/fd')) - files)\n"
    )
    bundle = str(tiny_bundle("llama", "plain", "int4"))
    done = subprocess.run([sys.executable, "-c", code, bundle], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 0\n"), done.stderr
