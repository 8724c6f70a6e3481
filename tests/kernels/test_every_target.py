"""Every kernel kind compiles and links for every default target, the same bytes each time.

Linking refuses an undefined symbol (a call of libm or memset), a writable section and an unknown relocation. For
x86-64-v4-vnni this is all that runs on a machine without AVX-512: its kernels are checked in their emulated form,
which differs in the one dot-product instruction and in what LLVM makes of 16-lane vectors.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys

import pytest

from goinfer.bundle_format.kernel_abi import MATMUL_KINDS
from goinfer.bundle_format.plan import Kernel
from goinfer.codegen import kernel as kernel_registry
from goinfer.codegen.compile import compile_kernel, load_builder
from goinfer.codegen.image import link
from goinfer.codegen.target import TARGETS, target_named
from goinfer.codegen.workers import Job

SPECS = [
    Kernel("embed_int4", "embed", {"format": "int4"}),
    Kernel("embed_bf16", "embed", {"format": "bf16"}),
    Kernel("norm_plain", "norm", {"norm": "rms", "add": "none", "out": "f32", "domain": "wanted"}),
    Kernel("norm_post", "norm", {"norm": "rms", "add": "normed", "out": "q8", "domain": "rows"}),
    Kernel("quantise", "quantise", {"domain": "rows"}),
    Kernel("silu", "gate_act", {"act": "silu", "out": "q8", "gated": True}),
    Kernel("gelu", "gate_act", {"act": "gelu_tanh", "out": "f32", "gated": True}),
    Kernel("softplus", "gate_act", {"act": "softplus", "out": "f32", "gated": False}),
    Kernel("argmax", "argmax", {}),
    Kernel("topk", "topk", {}),
    Kernel("softcap", "softcap", {"domain": "logits"}),
    Kernel("keep_rows", "keep_rows", {}),
    Kernel("add", "add", {"domain": "rows"}),
    Kernel("scale", "scale", {"domain": "rows"}),
    Kernel("matmul_int4", "matmul", {"format": "int4", "epilogue": "add", "bias": True, "domain": "rows"}),
    Kernel("matmul_int4min", "matmul", {"format": "int4min", "epilogue": "store", "bias": False, "domain": "rows"}),
    Kernel("matmul_f32", "matmul", {"format": "f32", "epilogue": "store", "bias": False, "domain": "logits"}),
    Kernel("matmul_best", "matmul_best", {"format": "int8int8", "bias": True, "domain": "greedy"}),
    Kernel("best_of", "best_of", {}),
    Kernel(
        "matmul_gated", "matmul_gated", {"format": "int4", "bias": False, "domain": "rows", "act": "silu", "out": "q8"},
    ),
    Kernel(
        "qkv_post", "qkv_post",
        {"head_dim": 64, "n_heads": 9, "n_kv_heads": 3, "kv": "f16", "rope": True, "q_norm": True, "k_norm": True},
    ),
    Kernel(
        "attention", "attention",
        {"head_dim": 64, "n_heads": 9, "n_kv_heads": 3, "kv": "f16", "out": "q8", "softcap": False, "sinks": False},
    ),
    Kernel("driver", "driver", {}),
    Kernel("crc32c", "crc32c", {}),
]  # fmt: skip


@functools.cache
def object_of(number: int, target: str) -> bytes:
    """Object file of SPECS[number]."""
    return compile_kernel(SPECS[number], target_named(target))


def digests(target: str) -> dict[str, str]:
    """SHA-256 of every object of a target, compiled anew."""
    return {s.symbol: hashlib.sha256(compile_kernel(s, target_named(target))).hexdigest() for s in SPECS}


def test_every_kind_is_in_the_list() -> None:
    load_builder("")  # no module has this name, so all are imported
    kinds = {k for k in kernel_registry._BUILDERS if not k.startswith("test_")}
    assert kinds <= {s.kind for s in SPECS}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(len(SPECS)), ids=[s.symbol for s in SPECS])
def test_compiles_without_undefined_symbols(target: str, number: int) -> None:
    spec = SPECS[number]
    image = link({spec.symbol: object_of(number, target)})
    expected = {"driver": "goinfer_forward", "crc32c": "goinfer_crc32c"}.get(spec.kind, spec.symbol)
    assert expected in image.exports and len(image.code) % 64 == 0


@pytest.mark.parametrize("target", TARGETS)
def test_all_kernels_of_a_target_link_into_one_image(target: str) -> None:
    objects = {s.symbol: object_of(i, target) for i, s in enumerate(SPECS)}
    image = link(objects)
    assert set(objects) - {"driver", "crc32c"} <= set(image.exports)


@pytest.mark.parametrize("target", [t.name for t in TARGETS.values() if t.like])
def test_kernels_without_dot_products_are_those_of_the_target_that_it_is_like(target: str) -> None:
    """What bundles rely on, and that matmuls are not among them. Seen red with: matmuls taken from there too."""
    for number, spec in enumerate(SPECS):
        job = Job.of(spec, target_named(target))
        assert object_of(number, job.target.name) == object_of(number, target), spec.symbol
    assert all(Job.of(s, target_named(target)).target.name == target for s in SPECS if s.kind in MATMUL_KINDS)


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-dotprod"])
def test_another_process_with_other_hashes_gives_the_same_bytes(target: str) -> None:
    program = (
        "import json, sys; from tests.kernels.test_every_target import digests; print(json.dumps(digests(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", program, target], capture_output=True, text=True, check=True,
                          env=environment)  # fmt: skip
    ours = {s.symbol: hashlib.sha256(object_of(i, target)).hexdigest() for i, s in enumerate(SPECS)}
    assert json.loads(done.stdout) == ours
