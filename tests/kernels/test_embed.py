"""The embedding lookup: bit for bit the unpacked row times the factor, in every format.

Seen red with: the high nibbles read before the low ones; the scale of row 0 for every row; the factor multiplied into
the scale first.
"""

import numpy as np
import pytest

from goinfer.bundle_format.kernel_abi import round_up
from goinfer.codegen import reference
from goinfer.codegen.errors import CompileError
from goinfer.compiler.quant.formats import FORMATS
from tests.kernels.harness import RUNNABLE, Call, place, run
from tests.kernels.rows import empty_rows, f32_values


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("vocab, hidden", [(40, 96), (17, 40), (64, 576)])
def test_rows_are_exact(target: str, fmt: str, vocab: int, hidden: int) -> None:
    rng = np.random.default_rng(vocab)
    table = rng.standard_normal((vocab, hidden)).astype(np.float32)
    table[3] = 0
    packed = FORMATS[fmt].pack(table)
    tokens = np.array([0, vocab - 1, 3, 15, 16, 3, *rng.integers(0, vocab, 5)], np.int32)
    out = empty_rows(len(tokens), hidden)
    factor = 33.941126
    call = Call(
        "embed", {"format": fmt}, [place(tokens), place(packed), out],
        [round_up(hidden, 32) // 32, out.strides[0], hidden], [factor], rows=len(tokens),
    )  # fmt: skip
    run(call, target, splits=[1, 4])
    want = reference.embed(tokens, FORMATS[fmt].unpack(packed, vocab, hidden), factor)
    assert f32_values(out, hidden).tobytes() == want.tobytes()


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(CompileError, match="int3"):
        run(Call("embed", {"format": "int3"}, []), "x86-64-v3")
