"""Each scaling rule against its definition in float64, and against transformers (marked oracle)."""

import math
from typing import Any

import numpy as np
import pytest

from goinfer.families import rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def freqs(entry: dict[str, Any], dim: int = 64, theta: float = 5e5) -> np.ndarray:
    table = rope.table({"rope_theta": theta} | entry, dim, context=16384)
    assert table.dim == dim and all(f == float(np.float32(f)) for f in table.inv_freq)
    return np.array(table.inv_freq)


def plain(dim: int = 64, theta: float = 5e5) -> np.ndarray:
    return theta ** (-np.arange(0, dim, 2) / dim)


@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
@pytest.mark.parametrize("dim", [2, 20, 64, 128, 256])
def test_default(dim: int, theta: float) -> None:
    """The exponent is rounded to float32 first, so theta 1e6 costs up to ln(1e6) * 2^-24 relative."""
    np.testing.assert_allclose(freqs({}, dim, theta), plain(dim, theta), rtol=1e-6)


def test_linear() -> None:
    np.testing.assert_allclose(freqs({"rope_type": "linear", "factor": 8.0}), plain() / 8, rtol=1e-6)


def test_llama3_has_three_zones() -> None:
    got, base = freqs(LLAMA3), plain()
    for f, b in zip(got, base, strict=True):
        wavelength = 2 * math.pi / b
        smooth = (8192 / wavelength - 1.0) / 3.0
        want = b if wavelength < 2048 else b / 32 if wavelength > 8192 else (1 - smooth) * b / 32 + smooth * b
        assert f == pytest.approx(want, rel=2e-6)
    assert got[0] == pytest.approx(base[0]) and got[-1] == pytest.approx(base[-1] / 32)


@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_ramps_between_two_dimensions(truncate: bool) -> None:
    got, base = freqs(YARN | {"truncate": truncate}), plain()
    low, high = (64 * math.log(4096 / (t * 2 * math.pi)) / (2 * math.log(5e5)) for t in (32, 1))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    for i, (f, b) in enumerate(zip(got, base, strict=True)):
        keep = 1 - min(max((i - low) / (high - low), 0.0), 1.0)
        assert f == pytest.approx(b / 4 * (1 - keep) + b * keep, rel=3e-6)


@pytest.mark.parametrize(
    ("extra", "want"),
    [
        ({}, 0.1 * math.log(4.0) + 1),
        ({"mscale": 2.0}, 0.1 * math.log(4.0) + 1),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4.0) + 1) / (0.1 * math.log(4.0) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"attention_factor": 1.0}, 1.0),
        ({"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_attention_factor(extra: dict[str, float], want: float) -> None:
    table = rope.table({"rope_theta": 1e4} | YARN | extra, 64, context=16384)
    assert table.attention_factor == pytest.approx(want, rel=1e-12)


def test_yarn_and_llama3_fall_back_to_the_context() -> None:
    short = {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}
    here = rope.table({"rope_theta": 1e4} | short, 64, context=4096)
    assert here == rope.table({"rope_theta": 1e4} | YARN, 64, context=16384)


def test_divisors_of_a_gguf_file() -> None:
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    table = rope.table({"rope_theta": 1e4}, 64, context=4096, divisors=divisors)
    np.testing.assert_allclose(table.inv_freq, plain(64, 1e4) / divisors, rtol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "entry", [{}, {"rope_type": "linear", "factor": 8.0}, LLAMA3, YARN, YARN | {"truncate": False}]
)
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_tables_equal_transformers(entry: dict[str, Any], theta: float) -> None:
    """At most one frequency in twenty may differ, by two units in the last place: torch's power is not exact."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    for dim in (20, 64, 80, 128, 256):
        config = transformers.LlamaConfig(
            hidden_size=dim * 4,
            num_attention_heads=4,
            head_dim=dim,
            rope_parameters={"rope_theta": theta, "rope_type": "default"} | entry,
            max_position_embeddings=16384,
        )
        oracle = LlamaRotaryEmbedding(config)
        want = oracle.inv_freq.numpy()
        got = freqs(entry, dim, theta).astype(np.float32)
        assert (got != want).mean() <= 0.05
        np.testing.assert_array_max_ulp(got, want, 2)
        table = rope.table({"rope_theta": theta} | entry, dim, context=16384)
        assert table.attention_factor == pytest.approx(oracle.attention_scaling, rel=1e-12)
