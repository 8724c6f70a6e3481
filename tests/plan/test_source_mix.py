"""int4 of a file that is 4-bit already: nothing is rounded twice, and what the file keeps finer stays finer.

Seen red with: scales and minima swapped; fused matrices quantised anew; the error of Q4_K's scales not measured; the
type of the first part deciding for all.
"""

from pathlib import Path

import numpy as np
import pytest

import goinfer
from goinfer.bundle_format.plan import Plan, Weight
from goinfer.bundle_format.reader import Bundle
from goinfer.compiler.checkpoints import open_checkpoint
from goinfer.compiler.family import build_model
from goinfer.compiler.quant.formats import format_named
from goinfer.families.registry import family
from goinfer.gates.steps import check_steps
from tests.conftest import native_target
from tests.mixed_gguf import MIX, write_mixed_gguf

EXPECTED = {
    "token_embd": "int8",
    "blk.0.attn_qkv": "int8", "blk.0.attn_output": "int4min", "blk.0.ffn_gate_up": "int4min", "blk.0.ffn_down": "int8",
    "blk.1.attn_qkv": "int4min", "blk.1.attn_output": "int4", "blk.1.ffn_gate_up": "int4min",
    "blk.1.ffn_down": "int4min",
}  # fmt: skip
ROUNDED = {"blk.0.attn_qkv": 0.006, "blk.0.ffn_gate_up": 1e-3, "blk.1.ffn_down": 1e-3}
"""Relative error of what has no exact form: Q6_K and Q4_K in int8, products of Q4_K's scales in f16."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixed_gguf(tmp_path_factory.mktemp("mixed") / "mixed.gguf")


def compiled(source: Path, recipe: str) -> Path:
    out = source.parent / f"{recipe}.giw"
    goinfer.prequant(source, out, quant=recipe, targets=[native_target()])
    return out


def matrices(bundle: Path) -> tuple[dict[str, Weight], bytes]:
    with Bundle.open(bundle) as reader:
        plan = Plan.from_bytes(reader.section("plan"))
        named = {w.name.removesuffix(".weight"): w for w in plan.weights if w.format != "vector"}
        return named, bytes(reader.section("weights"))


def test_each_tensor_is_stored_as_its_source_asks(source: Path) -> None:
    """The stored values are compared with the source's own; where `inspect` says exact they are equal."""
    named, data = matrices(compiled(source, "int4"))
    assert {name: w.format for name, w in named.items()} == EXPECTED
    checkpoint = open_checkpoint(source)
    weights = build_model(family("llama"), checkpoint).weights
    for name, w in named.items():
        stored = np.frombuffer(data, np.uint8)[w.offset : w.offset + w.nbytes]
        got = format_named(w.format).unpack(stored, w.n, w.k)
        want = np.concatenate([weights.read(part) for part in w.sources])
        off = np.linalg.norm((got - want).astype(np.float64)) / np.linalg.norm(want.astype(np.float64))
        assert abs(off - w.error) <= 1e-6, (name, off, w.error)
        if name in ROUNDED:
            assert 0 < off <= ROUNDED[name], (name, off)
        else:
            assert np.array_equal(got, want), (name, off)


def test_int4all_is_four_bits_everywhere(source: Path) -> None:
    named, _ = matrices(compiled(source, "int4all"))
    assert {w.format for w in named.values()} == {"int4", "int4min"}
    assert named["blk.0.attn_qkv"].format == "int4min" and named["blk.0.ffn_down"].format == "int4"


def test_a_file_that_is_not_four_bit_becomes_four_bit(tmp_path: Path) -> None:
    finer = tuple(dict.fromkeys(types, "Q5_0" if layer else "Q8_0") for layer, types in enumerate(MIX))
    named, _ = matrices(compiled(write_mixed_gguf(tmp_path / "finer.gguf", finer), "int4"))
    assert {w.format for name, w in named.items() if name != "token_embd"} == {"int4"}


def test_int8int8_takes_over_symmetric_grids(source: Path) -> None:
    named, _ = matrices(compiled(source, "int8int8"))
    assert {w.format for w in named.values()} == {"int8"}
    exact = {name for name, w in named.items() if w.error == 0}
    assert exact == {"token_embd", "blk.0.ffn_down", "blk.1.attn_output"}


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_every_step_of_the_program_is_right(source: Path, kv: str) -> None:
    with goinfer.load(compiled(source, "int4"), kv=kv) as model:
        wrong = [f for f in check_steps(model, list(range(3, 51))) if not f.ok]
        assert not wrong, wrong
