"""A source of 2 GB is read and packed in the memory of a few bands."""

import subprocess
import sys

import pytest

from tests.checkpoints.gguf_forge import F16, LLAMA, Q4_0, TENSORS, Forge, Tensor

pytestmark = pytest.mark.heavy

SCRIPT = """
import resource, sys
from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.quant.formats import FORMATS
FORMATS["int4"].pack(__import__("numpy").zeros((16, 32), "f4"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint, packed = open_checkpoint(sys.argv[1]), 0
for name, info in checkpoint.tensors.items():
    for start in range(0, info.shape[0], 4096):
        w = checkpoint.read(name, start, start + 4096)
        packed += FORMATS[sys.argv[2]].pack(w.reshape(len(w), -1)).nbytes
print(packed, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_memory_of_two_gigabytes(tmp_path, name):
    rows = 3 << 16
    tensors = [
        *TENSORS[1:],
        Tensor("token_embd.weight", (4096, rows), Q4_0, b""),
        Tensor("blk.0.ffn_up.weight", (4096, rows), F16, b""),
    ]
    sizes = [rows * 128 * 18, rows * 8192]
    offset = 8192
    placed = []
    for tensor, size in zip(tensors[-2:], sizes, strict=True):
        placed.append(Tensor(tensor.name, tensor.dims, tensor.kind, b"", offset))
        offset += size
    path = Forge(LLAMA, (*tensors[:-2], *placed)).write(tmp_path / "m.gguf")
    with path.open("r+b") as f:
        header = len(Forge(LLAMA, (*tensors[:-2], *placed)).header())
        f.truncate(-(-header // 32) * 32 + offset)
    assert path.stat().st_size > 2e9
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path), name], capture_output=True, text=True, check=True, timeout=280
    )
    packed, extra = map(int, done.stdout.split())
    assert packed > 2 * rows * 4096 / 2
    assert extra < 300
