"""The kernel between the q|k|v product and attention: norms, rotation, query scale, and what lands in the cache."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from goinfer.bundle_format.kernel_abi import f32_row_bytes
from goinfer.codegen.errors import CompileError
from goinfer.codegen.reference_attention import CacheShape, QkvPost, read_position
from goinfer.codegen.target import TARGETS
from tests.kernels.harness import NATIVE_TARGETS, RUNNABLE, Call, aligned, image_of, place, run
from tests.kernels.kv_pages import Pages

POSITIONS = 300


@dataclass
class Case:
    """Rows of q|k|v at (slot, position), and what they mean."""

    meaning: QkvPost
    kv: str
    x: np.ndarray
    slots: list[int]
    positions: list[int]

    @property
    def shape(self) -> CacheShape:
        return CacheShape(self.meaning.n_kv_heads, self.meaning.head_dim, self.kv, layer_offset=128)

    def fresh_pages(self) -> Pages:
        return Pages.make(self.shape, 3, POSITIONS // 64 + 1, order_seed=3)

    def kernel(self, target: str, splits: list[int] | None = None) -> tuple[np.ndarray, Pages]:
        """Queries [rows, n_heads, head_dim] and the cache after the call."""
        m, rows = self.meaning, len(self.positions)
        pages, width = self.fresh_pages(), m.n_heads * m.head_dim
        x = aligned((rows, f32_row_bytes(self.x.shape[1]) // 4), np.float32)
        x[:, : self.x.shape[1]] = self.x
        q = aligned((rows, f32_row_bytes(width) // 4), np.float32)
        attrs = {
            "head_dim": m.head_dim, "n_heads": m.n_heads, "n_kv_heads": m.n_kv_heads, "kv": self.kv,
            "rope": m.rope is not None, "q_norm": m.q_norm is not None, "k_norm": m.k_norm is not None,
        }  # fmt: skip
        optional = [None if a is None else place(a) for a in (m.rope, m.q_norm, m.k_norm)]
        pointers = [
            x, q, optional[0], pages.table, place(np.array(self.positions, np.int32)),
            place(np.array(self.slots, np.int32)), optional[1], optional[2],
        ]  # fmt: skip
        ints = [x.strides[0], q.strides[0], self.shape.layer_offset, pages.table.shape[1]]
        run(Call("qkv_post", attrs, pointers, ints, [m.eps, m.q_scale], rows=rows), target, splits)
        return q[:, :width].reshape(rows, m.n_heads, m.head_dim), pages

    def expected(self) -> tuple[np.ndarray, Pages]:
        """Queries and cache the reference's way."""
        pages, queries = self.fresh_pages(), []
        for row, slot, position in zip(self.x, self.slots, self.positions, strict=True):
            q, k, v = self.meaning.heads(row, position)
            pages.write(slot, position, k, v)
            queries.append(q)
        return np.stack(queries), pages


def rope_table(head_dim: int) -> np.ndarray:
    angles = np.arange(POSITIONS)[:, None] / 10000.0 ** (np.arange(head_dim // 2) / (head_dim // 2))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def random_case(
    head_dim: int, kv: str, n_heads: int, n_kv_heads: int, *, norms: bool = False, rope: bool = True
) -> Case:
    """Rows of three slots around page ends, in no order."""
    rng = np.random.default_rng(head_dim)
    weights = [rng.standard_normal(head_dim).astype(np.float32) if norms else None for _ in range(2)]
    table = rope_table(head_dim) if rope else None
    meaning = QkvPost(n_heads, n_kv_heads, head_dim, 0.173, 1e-6, table, *weights)
    places = [(0, 0), (1, 63), (0, 64), (2, 15), (2, 16), (1, 299), (0, 1), (0, 130), (2, 255), (2, 256), (1, 64)]
    x = rng.standard_normal((len(places), (n_heads + 2 * n_kv_heads) * head_dim)).astype(np.float32)
    return Case(meaning, kv, x, [s for s, _ in places], [p for _, p in places])


def stored_parts(shape: CacheShape, page: np.ndarray, place: int) -> list[np.ndarray]:
    """Numbers and scales of one position as they are stored, of all heads."""
    parts = []
    for head in range(shape.n_kv_heads):
        keys, values, key_scales, value_scales = shape.parts(page, head)
        parts += [keys[place // 16, :, place % 16], values[place]]
        parts += [] if key_scales is None else [key_scales[place], value_scales[place]]
    return parts


def check_exact(case: Case, target: str) -> None:
    """Without norms every rounding is prescribed: queries and all of the cache's memory, written or not, are equal."""
    got, pages = case.kernel(target)
    want, expected = case.expected()
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(pages.memory, expected.memory)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("head_dim, n_heads, n_kv_heads", [(64, 9, 3), (24, 4, 4), (80, 7, 1)])
def test_rotation_and_cache_bytes(target: str, kv: str, head_dim: int, n_heads: int, n_kv_heads: int) -> None:
    check_exact(random_case(head_dim, kv, n_heads, n_kv_heads), target)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("head_dim", [7, 96, 128, 256])
def test_without_rotation(target: str, head_dim: int) -> None:
    check_exact(random_case(head_dim, "f16", 3, 1, rope=False), target)


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("head_dim", [24, 64, 256])
@pytest.mark.parametrize("scale", [1e-18, 1.0, 1000.0])
def test_head_norms(target: str, kv: str, head_dim: int, scale: float) -> None:
    """Norms sum in an order of their own: close, not equal. 1e-18 squared is far below eps."""
    case = random_case(head_dim, kv, 4, 1, norms=True)
    case.x *= np.float32(scale)
    got, pages = case.kernel(target)
    want, expected = case.expected()
    bound = np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * bound)
    step = {"f32": 3e-6, "f16": 6e-4, "int8": 1e-2}[kv]
    for slot, position in zip(case.slots, case.positions, strict=True):
        k, v = read_position(case.shape, pages.page(slot, position), position % 64)
        k_want, v_want = read_position(case.shape, expected.page(slot, position), position % 64)
        np.testing.assert_allclose(k, k_want, rtol=0, atol=step * np.abs(k_want).max())
        np.testing.assert_array_equal(v, v_want)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
def test_one_norm_alone(target: str, norm: str) -> None:
    case = random_case(64, "f32", 4, 2, norms=True)
    case.meaning = replace(case.meaning, **{norm: None})
    got, pages = case.kernel(target)
    want, expected = case.expected()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    k, _ = read_position(case.shape, pages.page(1, 299), 299 % 64)
    k_want, _ = read_position(case.shape, expected.page(1, 299), 299 % 64)
    np.testing.assert_allclose(k, k_want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("fill", [0.0, -0.0, 1e-38, 0.5, 65504.0, 1e30, np.inf, np.nan])
def test_adversarial_rows(target: str, kv: str, fill: float) -> None:
    """Zero heads give scale 0, overflow and NaN stay visible when read back, and other rows are untouched."""
    case = random_case(64, kv, 4, 2)
    case.x[3] = fill
    case.x[5, 70] = fill
    got, pages = case.kernel(target)
    want, expected = case.expected()
    np.testing.assert_array_equal(got, want)
    for slot, position in zip(case.slots, case.positions, strict=True):
        stored = stored_parts(case.shape, pages.page(slot, position), position % 64)
        wanted = stored_parts(case.shape, expected.page(slot, position), position % 64)
        for a, b in zip(stored, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert np.isfinite(read_position(case.shape, pages.page(0, 1), 1)[0]).all()


@pytest.mark.parametrize("target", NATIVE_TARGETS)
@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_rows_do_not_depend_on_company(target: str, kv: str) -> None:
    """All rows at once, cut into calls, or alone: the same bytes."""
    case = random_case(64, kv, 9, 3, norms=True)
    q, pages = case.kernel(target)
    q_cut, pages_cut = case.kernel(target, splits=[1, 4, 10])
    np.testing.assert_array_equal(q, q_cut)
    np.testing.assert_array_equal(pages.memory, pages_cut.memory)
    alone = replace(case, x=case.x[5:6], slots=case.slots[5:6], positions=case.positions[5:6])
    q_alone, pages_alone = alone.kernel(target)
    np.testing.assert_array_equal(q[5:6], q_alone)
    for a, b in zip(
        read_position(case.shape, pages.page(1, 299), 299 % 64),
        read_position(case.shape, pages_alone.page(1, 299), 299 % 64),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


ATTRS = '{{"head_dim": {}, "kv": "{}", "n_heads": 4, "n_kv_heads": 2, "rope": true, "q_norm": true, "k_norm": true}}'


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("kv", ["f32", "f16", "int8"])
@pytest.mark.parametrize("head_dim", [24, 64])
def test_every_target_compiles(target: str, kv: str, head_dim: int) -> None:
    """No undefined symbol, no unknown relocation (linking refuses both)."""
    image_of("qkv_post", ATTRS.format(head_dim, kv), target)


def test_odd_head_with_rotation_is_refused() -> None:
    with pytest.raises(CompileError, match="head_dim 7 is odd"):
        image_of("qkv_post", ATTRS.format(7, "f16"), "x86-64-v3")
