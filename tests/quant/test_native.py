"""The quantisers' machine code against their NumPy meaning: the same bytes and statistics, on odd input too."""

import numpy as np
import pytest

from goinfer.codegen import host
from goinfer.compiler.errors import WeightRangeError
from goinfer.compiler.quant import native, search
from goinfer.compiler.quant.formats import FORMATS

SHAPES = [(16, 32), (16, 4096 + 64), (48, 96), (160, 576), (32, 8192)]


def ordinary(n, k):
    return np.random.default_rng(n + k).standard_normal((n, k)).astype(np.float32)


def heavy_tails(n, k):
    return (np.random.default_rng(k).standard_t(2, (n, k)) * 0.02).astype(np.float32)


def on_a_grid(n, k):
    """Ties everywhere: sums of groups and roundings sit exactly between two codes."""
    return np.random.default_rng(n).integers(-15, 16, (n, k)).astype(np.float32) / 2


def every_magnitude(n, k):
    rng = np.random.default_rng(0)
    return (rng.standard_normal((n, k)) * 10.0 ** rng.uniform(-45, 4, (n, 1))).astype(np.float32)


def one_value(n, k):
    w = np.zeros((n, k), np.float32)
    w[np.arange(n), np.random.default_rng(1).integers(0, k, n)] = np.linspace(-3, 3, n)
    return w


def symmetric(n, k):
    w = np.ones((n, k), np.float32)
    w[:, ::2] = -1
    w[0] = 0
    w[1] = -0.0
    return w


KINDS = [ordinary, heavy_tails, on_a_grid, every_magnitude, one_value, symmetric]


def both_ways(f, w):
    """(bytes, stats) from the machine code and from NumPy; the outputs start out poisoned."""
    results = []
    for pack in (lambda *args: native.pack(f.name, *args), f.pack_slowly):
        out = np.full((w.shape[0] // 16, w.shape[1] // 32, f.block_bytes), 0xA5, np.uint8)
        stats = search.new_stats()
        assert pack(w, out, stats) in (True, None)
        results.append((out, stats))
    return results


@pytest.mark.parametrize("name", ["int4", "int8"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_bits(name, kind, shape):
    (fast, fast_stats), (slow, slow_stats) = both_ways(FORMATS[name], kind(*shape))
    assert fast.tobytes() == slow.tobytes()
    assert fast_stats.tobytes() == slow_stats.tobytes()


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_the_machine_code_is_what_pack_runs_here(name, monkeypatch):
    f, w = FORMATS[name], ordinary(48, 96)
    expected = f.measure(w)
    monkeypatch.setattr(type(f), "pack_slowly", None)
    assert f.measure(w).data.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_without_machine_code(name, monkeypatch):
    f, w = FORMATS[name], heavy_tails(50, 100)
    fast = f.measure(w)
    monkeypatch.setattr(native, "_functions", lambda: None)
    slow = f.measure(w)
    assert fast.data.tobytes() == slow.data.tobytes()
    assert (fast.energy, fast.error) == (slow.energy, slow.error)
    with pytest.raises(WeightRangeError, match=r"needs scale 8\.62e"):
        f.measure(np.full((16, 32), 6.9e5 if name == "int4" else 1.0947e7, np.float32))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(16, 32), (33, 70), (160, 576)])
def test_measured_energies_are_those_of_unpack(name, shape):
    f, w = FORMATS[name], heavy_tails(*shape)
    packed = f.measure(w)
    change = f.unpack(packed.data, *shape).astype(np.float64) - w
    assert packed.energy == pytest.approx(np.square(w, dtype=np.float64).sum(), rel=1e-6)
    assert packed.error == pytest.approx(np.square(change).sum(), rel=1e-4)
    assert packed.data.tobytes() == f.pack(w).tobytes()


def test_a_machine_that_lacks_the_target_s_features_is_not_used(monkeypatch):
    assert host.host_target() is not None
    fewer = host.cpu_flags() - {"avx2", "asimddp"}
    monkeypatch.setattr(host, "cpu_flags", lambda: fewer)
    assert host.host_target() is None
    assert host.compile_for_host(native._define) is None
