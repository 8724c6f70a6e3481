"""A row of attention has the same bytes whatever its tile, wherever its pages lie, however tiles are shared out."""

import numpy as np
import pytest

from tests.kernels.attention_case import LANE_STRUCTURES, Case, random_case, split_tiles, tiles_of
from tests.kernels.harness import AARCH64
from tests.kernels.rows import assert_quantised

TARGETS = (*LANE_STRUCTURES, AARCH64)
"""Targets of each vector width."""

HEAVY = pytest.mark.heavy


def plain(kv: str, positions: list[int]) -> Case:
    return random_case(64, kv, 9, 3, positions)


def everything(kv: str, positions: list[int]) -> Case:
    """A window that ends inside the tile's blocks, a cap and sinks."""
    return random_case(64, kv, 9, 3, positions, window=70, softcap=5.0, sinks=np.linspace(-2, 2, 9).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("make", [plain, everything])
@pytest.mark.parametrize("first", [0, pytest.param(57, marks=HEAVY), pytest.param(249, marks=HEAVY), 252])
def test_tile_shape(target: str, kv: str, make: type[Case], first: int) -> None:
    """Tiles of 1, 3 and 8 rows, and one that begins off the others' grid."""
    case = make(kv, list(range(first, first + 13)))
    alone = case.kernel(target, tiles_of(13, 1))
    for tiles in (tiles_of(13, 3), tiles_of(13, 8), [(0, 2), (2, 8), (10, 3)], [(8, 5), (0, 8)]):
        np.testing.assert_array_equal(case.kernel(target, tiles), alone)


SHAPES = [(64, 3, 3), (64, 9, 3), (80, 4, 1), (96, 14, 2), (128, 16, 1), (256, 3, 1), (24, 13, 1)]
"""head_dim, n_heads, n_kv_heads: 1, 3, 4, 7, 16 and 13 query heads a KV head."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv", ["f16", pytest.param("f32", marks=HEAVY), pytest.param("int8", marks=HEAVY)])
@pytest.mark.parametrize("head_dim, n_heads, n_kv_heads", SHAPES)
def test_a_row_alone_in_a_chunk_and_split(target: str, kv: str, head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    """At every ratio of heads: chunks of 27 rows across a block's end, each row alone, each row's blocks apart.

    Seen red with: a rounding more in the scores of a lone row.
    """
    positions = list(range(500, 527))
    case = random_case(head_dim, kv, n_heads, n_kv_heads, positions)
    whole = case.kernel(target, tiles_of(27, 24))
    for tiles in (tiles_of(27, 8), tiles_of(27, 1), split_tiles(positions)):
        np.testing.assert_array_equal(case.kernel(target, tiles), whole)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("make", [plain, everything])
def test_blocks_apart_in_any_order(target: str, kv: str, make: type[Case]) -> None:
    """A context of up to four blocks, its tiles forwards, backwards, shuffled, and each in a call of its own.

    Seen red with: blocks joined in descending order; the tile of block 0 always joining; a counter that is not put
    back (the second layer of a forward would find it).
    """
    positions = [255, 256, 300, 511, 512, 900]
    case = make(kv, positions)
    whole, tiles = case.kernel(target, tiles_of(6, 1)), split_tiles(positions)
    shuffled = [tiles[i] for i in np.random.default_rng(1).permutation(len(tiles))]
    for order in (tiles, tiles[::-1], shuffled):
        np.testing.assert_array_equal(case.kernel(target, order), whole)
    apart = case.kernel(target, shuffled, splits=list(range(1, 3 * len(tiles))))
    np.testing.assert_array_equal(apart, whole)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
def test_addresses_and_slots(target: str, kv: str) -> None:
    """Another order of pages in memory, another slot, other slots' memory poisoned."""
    case = plain(kv, list(range(250, 262)))
    here = case.kernel(target, tiles_of(12, 8))
    case.store(order_seed=9, slot=2, n_slots=4)
    np.testing.assert_array_equal(case.kernel(target, tiles_of(12, 8)), here)


@pytest.mark.parametrize("target", TARGETS)
def test_splits_between_threads(target: str) -> None:
    """Any cut of the tiles into calls."""
    case = everything("f16", list(range(250, 262)))
    tiles = tiles_of(12, 8)
    whole = case.kernel(target, tiles)
    for splits in ([1], [3], [5], [1, 2, 4], list(range(1, 6))):
        np.testing.assert_array_equal(case.kernel(target, tiles, splits), whole)


@pytest.mark.parametrize("target", TARGETS)
def test_what_lies_after_the_row_does_not_matter(target: str) -> None:
    """Later positions of the cache, written or NaN, and an extra tile beside it."""
    case = plain("f16", list(range(300, 310)))
    whole = case.kernel(target, tiles_of(10, 8))
    short = plain("f16", list(range(300, 310)))
    short.positions, short.q = short.positions[:3], short.q[:3]
    short.store(order_seed=0)
    np.testing.assert_array_equal(short.kernel(target, [(0, 3)]), whole[:3])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("head_dim, n_heads", [(64, 9), (96, 3), (256, 3)])
def test_int8_activations(target: str, head_dim: int, n_heads: int) -> None:
    """out="q8" holds exactly the quantised form of what out="f32" holds, in every tile shape."""
    case = random_case(head_dim, "f16", n_heads, n_heads // 3, list(range(250, 259)))
    case.values[251] = 0
    case.q[2, 1, 3] = np.nan
    values = case.result(target).reshape(9, -1).copy()
    case.out = "q8"
    rows = case.kernel(target, tiles_of(9, 8))
    assert_quantised(rows, values)
    used = n_heads * head_dim // 4 * 5
    np.testing.assert_array_equal(case.kernel(target, tiles_of(9, 1))[:, :used], rows[:, :used])
