"""The attention kernel against its reference: precisions, head sizes, windows, caps, sinks, awkward lengths and input.

The cache starts as NaN everywhere, so reading anything that was never written shows.
"""

import json

import numpy as np
import pytest

from goinfer.codegen.errors import CompileError
from goinfer.codegen.image import CodeImage
from goinfer.codegen.target import TARGETS
from tests.kernels.attention_case import LANE_STRUCTURES, Case, Tile, random_case, split_tiles, tiles_of
from tests.kernels.harness import AARCH64, NATIVE_TARGETS, image_of

WITH_AARCH64 = (*LANE_STRUCTURES, AARCH64)

ATTRS = {
    "head_dim": 64, "n_heads": 9, "n_kv_heads": 3, "kv": "f16", "out": "f32", "softcap": False, "sinks": False,
}  # fmt: skip

SHAPES = [
    # head_dim, kv, n_heads, n_kv_heads
    (64, "f16", 9, 3),
    (64, "f32", 4, 1),
    (64, "int8", 7, 1),
    (24, "f16", 4, 4),
    (80, "int8", 3, 1),
    (96, "f32", 3, 3),
    (128, "f16", 7, 1),
    (256, "f16", 4, 1),
    (8, "f32", 2, 2),
    (64, "f16", 16, 1),
    (128, "int8", 16, 1),
    (80, "f16", 14, 2),
    (24, "f32", 13, 1),
]


def _image(attrs: dict[str, object], target: str) -> CodeImage:
    return image_of("attention", json.dumps(attrs, sort_keys=True), target)


def close(case: Case, target: str, tolerance: float = 3e-6, tiles: list[Tile] | None = None) -> None:
    """Largest error of the kernel's rows, relative to the largest value of the cache."""
    got, want = case.result(target, tiles), case.expected()
    assert np.isfinite(got).all()
    assert np.abs(got - want).max() <= tolerance * max(1e-30, np.abs(case.read[1]).max())


@pytest.mark.parametrize("target", WITH_AARCH64)
@pytest.mark.parametrize("head_dim, kv, n_heads, n_kv_heads", SHAPES)
def test_random_rows(target: str, head_dim: int, kv: str, n_heads: int, n_kv_heads: int) -> None:
    """A chunk of 11 rows across the 256 block, and every tail of a tile."""
    close(random_case(head_dim, kv, n_heads, n_kv_heads, list(range(250, 261))), target)


@pytest.mark.parametrize("target", WITH_AARCH64)
@pytest.mark.parametrize("head_dim, kv, n_heads, n_kv_heads", SHAPES)
def test_lone_rows(target: str, head_dim: int, kv: str, n_heads: int, n_kv_heads: int) -> None:
    """Rows alone have code of their own; so has a context that is split into blocks."""
    case = random_case(head_dim, kv, n_heads, n_kv_heads, [0, 17, 300, 530])
    close(case, target, tiles=tiles_of(4, 1))
    close(case, target, tiles=split_tiles(case.positions))


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_targets_with_equal_lanes_share_the_code(kv: str) -> None:
    codes = {_image({**ATTRS, "kv": kv}, target).code for target in NATIVE_TARGETS if "v4" not in target}
    assert len(codes) == 1


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("last", [0, 1, 14, 15, 16, 62, 63, 64, 65, 254, 255, 256, 257, 511, 512, 999, 1000])
def test_one_row_at_every_boundary(target: str, last: int) -> None:
    close(random_case(64, "f16", 9, 3, [last], seed=last), target)


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("first", [0, 1, 60, 63, 250, 253, 255, 256, 257, 997])
def test_a_tile_at_every_boundary(target: str, first: int) -> None:
    close(random_case(64, "f16", 9, 3, list(range(first, first + 8)), seed=first), target)


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 63, 64, 65, 256, 300, 2000])
@pytest.mark.parametrize("first", [0, 60, 252, 520])
def test_windows(target: str, window: int, first: int) -> None:
    """Windows below, at and above the length; pages that no row needs are null."""
    case = random_case(64, "f16", 9, 3, list(range(first, first + 8)), seed=window, window=window)
    case.pages.release_below(0, max(0, first - window + 1))
    close(case, target)
    close(case, target, tiles=split_tiles(case.positions))


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("length", [7, 8, 9, 17])
@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_window_equal_to_the_length(target: str, length: int, chunk: int) -> None:
    """Row by row, in threes and in one tile, around the length at which the window begins to bite: same bytes."""
    case = random_case(24, "f16", 4, 4, list(range(length)), window=8)
    close(case, target)
    whole = case.kernel(target, tiles_of(length, 8))
    np.testing.assert_array_equal(case.kernel(target, tiles_of(length, chunk)), whole)


@pytest.mark.parametrize("target", WITH_AARCH64)
@pytest.mark.parametrize("cap", [0.5, 5.0, 50.0])
def test_softcap(target: str, cap: float) -> None:
    case = random_case(64, "f16", 9, 3, list(range(300, 305)), softcap=cap)
    close(case, target)
    plain = random_case(64, "f16", 9, 3, list(range(300, 305)))
    assert np.abs(case.expected() - plain.expected()).max() > 1e-5, "the cap changes nothing, so this test sees nothing"


@pytest.mark.parametrize("target", WITH_AARCH64)
@pytest.mark.parametrize("sink", [-100.0, -1.0, 0.0, 3.0, 100.0])
def test_sinks(target: str, sink: float) -> None:
    sinks = np.linspace(sink, sink + 2, 9).astype(np.float32)
    close(random_case(64, "f16", 9, 3, [*range(254, 259)], sinks=sinks), target)
    close(random_case(64, "f16", 9, 3, [300], sinks=sinks, window=5), target)


AWKWARD = (
    "zeros", "zero queries", "all equal", "one huge key", "huge last key", "huge values", "scores of thousands", "tiny",
)  # fmt: skip


def _adversarial(name: str, kv: str) -> Case:
    case = random_case(64, kv, 9, 3, list(range(290, 303)), seed=5)
    if name == "zeros":
        case.keys[:], case.values[:], case.q[:] = 0, 0, 0
    elif name == "zero queries":
        case.q[:] = 0
    elif name == "all equal":
        case.keys[:], case.values[:], case.q[:] = 0.25, -1.5, 0.5
    elif name == "one huge key":
        case.keys[70] *= 1000
    elif name == "huge last key":
        case.keys[302] *= 1000
    elif name == "huge values":
        case.values *= 10000
    elif name == "scores of thousands":
        case.q *= 500
    elif name == "tiny":
        case.keys *= 1e-6
        case.values *= 1e-6
    case.store(order_seed=1)
    return case


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("name", AWKWARD)
def test_adversarial_input(target: str, kv: str, name: str) -> None:
    """Scores of thousands carry float32's rounding of the score itself into the weight: a wider bound there."""
    close(_adversarial(name, kv), target, 3e-3 if name == "scores of thousands" else 3e-5 if "key" in name else 3e-6)


@pytest.mark.parametrize("target", WITH_AARCH64)
def test_equal_values_come_back_exactly(target: str) -> None:
    """One position: the output is its value, bit for bit (exp(0) is 1)."""
    case = random_case(64, "f32", 4, 1, [0])
    np.testing.assert_array_equal(case.result(target), np.broadcast_to(case.values[0], (1, 4, 64)))


@pytest.mark.parametrize("target", LANE_STRUCTURES)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["keys", "values"])
def test_a_bad_position_reaches_later_rows_only(target: str, kv: str, bad: float, what: str) -> None:
    """NaN or infinity at position 260: rows before it keep their bytes inside the same tile, rows after it show NaN."""
    positions = list(range(256, 264))
    clean = random_case(64, kv, 9, 3, positions).kernel(target, [(0, 8)])
    case = random_case(64, kv, 9, 3, positions)
    getattr(case, what)[260] = bad
    case.store(order_seed=0)
    got = case.kernel(target, [(0, 8)])
    np.testing.assert_array_equal(got[:4], clean[:4])
    np.testing.assert_array_equal(case.kernel(target, split_tiles(positions))[:4], clean[:4])
    assert not np.isfinite(got[4:].view(np.float32)).all(axis=1).any()


@pytest.mark.parametrize("target", LANE_STRUCTURES)
def test_a_nan_query_stays_in_its_row_and_head(target: str) -> None:
    case = random_case(64, "f16", 9, 3, list(range(256, 264)))
    clean = case.result(target)
    case.q[3, 5, 17] = np.nan
    got = case.result(target)
    assert np.isnan(got[3, 5]).all()
    got[3, 5] = clean[3, 5]
    np.testing.assert_array_equal(got, clean)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_kv_heads": 4}, "do not divide"),
        ({"kv": "f8"}, "KV precision"),
        ({"out": "q8", "head_dim": 80}, "no multiple of 32"),
        ({"head_dim": 0}, "head_dim 0"),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        _image({**ATTRS, **change}, "x86-64-v3")


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("head_dim, kv", [(24, "f32"), (64, "f16"), (64, "int8")])
def test_every_target_compiles(target: str, head_dim: int, kv: str) -> None:
    """No undefined symbol, no unknown relocation (linking refuses both)."""
    _image({**ATTRS, "head_dim": head_dim, "kv": kv, "softcap": True, "sinks": True}, target)
