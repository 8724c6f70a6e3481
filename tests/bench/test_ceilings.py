"""The ceilings: that the loops do the work they are credited with, on every target that this machine runs."""

import numpy as np
import pytest

from goinfer.bench.ceilings import CHAINS, Ceilings, Meter, chains_of
from goinfer.codegen.errors import CompileError
from goinfer.codegen.host import runs_here
from goinfer.codegen.target import TARGETS

HERE = [target for target in TARGETS.values() if runs_here(target)]


@pytest.mark.parametrize("target", HERE, ids=lambda t: t.name)
def test_every_reader_reads_every_byte(target: object) -> None:
    """By its result, the combination of all vectors. Seen red with the last stream of _stream left out."""
    ceilings = Ceilings(target)  # type: ignore[arg-type]
    memory = ceilings.memory(1 << 17)
    lanes = memory.view(np.uint32)
    lanes[:] = np.random.default_rng(0).integers(0, 1 << 32, lanes.size, dtype=np.uint32)
    want = np.bitwise_xor.reduce(lanes.reshape(-1, ceilings.target.lanes), axis=0)
    for name, read in ceilings._readers.items():
        out = np.zeros(64, np.uint8)
        read(memory.ctypes.data, memory.nbytes, out.ctypes.data)
        assert np.array_equal(out.view(np.uint32)[: want.size], want), name
        assert ceilings.read(2, memory, name) > 0


@pytest.mark.parametrize("target", HERE, ids=lambda t: t.name)
def test_every_dot_loop_makes_its_products(target: object) -> None:
    """Weights 1 and activations 1: a chain that starts from i ends at i + 4 * steps (2 * steps in 16-bit lanes).

    Seen red with one chain of _dots carried over unchanged.
    """
    ceilings = Ceilings(target)  # type: ignore[arg-type]
    memory, steps = ceilings.memory(8192), 24
    word = np.int16 if ceilings.target.dot == "maddubs" else np.int32
    each = (2 if word is np.int16 else 4) * steps
    for chains, dots in ceilings._dots.items():
        out = np.zeros(64, np.uint8)
        dots(memory.ctypes.data, steps, out.ctypes.data)
        want = np.bitwise_xor.reduce(np.arange(chains, dtype=word) + each)
        assert set(out.view(word)[: 4 * ceilings.target.lanes // np.dtype(word).itemsize]) == {want}, chains


def test_chains_fit_the_registers() -> None:
    """16 registers with products apart from sums hold 7 chains; the 14 of VNNI on 16 registers, 30 on 32."""
    assert max(chains_of(TARGETS["x86-64-v3"])) == 7
    assert max(chains_of(TARGETS["x86-64-v3-avxvnni"])) == 12
    assert chains_of(TARGETS["x86-64-v4-vnni"]) == list(CHAINS)


def test_a_meter_keeps_the_best() -> None:
    meter = Meter(Ceilings(), 1, 1 << 20)
    assert meter.read_gbs == max(meter.readers.values()) and meter.dot_gmacs == max(meter.dot_loops.values())
    assert meter.read() <= meter.read_gbs and meter.dots() <= meter.dot_gmacs
    facts = meter.as_dict()
    assert set(facts["readers"]) == set(meter.readers) and facts["target"] == meter.target.name


def test_a_target_of_another_machine_is_refused() -> None:
    other = TARGETS["aarch64-dotprod" if HERE[0].arch == "x86_64" else "x86-64-v3"]
    with pytest.raises(CompileError, match=f"this machine runs no code for {other.name}"):
        Ceilings(other)
