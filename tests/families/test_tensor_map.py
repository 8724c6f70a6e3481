"""The tensor map: exact names, transforms in bands, completeness both ways, shapes against the config."""

import numpy as np
import pytest

from goinfer.compiler.checkpoints.tensor_map import (
    PLUS_ONE,
    UNPAIR_ROWS,
    SourceMap,
    TensorRow,
    Weights,
)
from goinfer.compiler.errors import CheckpointError, MissingTensorError, TensorShapeError, UnsupportedError
from goinfer.compiler.family import build_model
from goinfer.families.registry import FAMILIES, family
from tests.families.memory_checkpoint import MemoryCheckpoint, random_weights, tiny_graph

ROWS = (
    TensorRow("e.weight", "tok.weight", "model.embed.weight"),
    TensorRow("blk.{i}.q.weight", "blk.{i}.q.weight", "layers.{i}.q.weight", gguf_transform=UNPAIR_ROWS),
    TensorRow("blk.{i}.n.weight", "blk.{i}.n.weight", "layers.{i}.n.weight", hf_transform=PLUS_ONE),
    TensorRow("head.weight", "out.weight", "lm_head.weight", spare=True),
    TensorRow("gguf_only", "extra", ""),
)


def store(kind: str, blocks: dict | None = None, **shapes: tuple[int, ...]) -> MemoryCheckpoint:
    rng = np.random.default_rng(3)
    arrays = {name.replace("__", "."): rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return MemoryCheckpoint(kind, {}, arrays, blocks)


def test_names_match_per_kind() -> None:
    gguf = SourceMap.match(store("gguf", tok__weight=(4, 2), blk__12__q__weight=(4, 2), extra=(1,)), ROWS, ())
    assert {k: v.name for k, v in gguf.sources.items()} == {
        "e.weight": "tok.weight", "blk.12.q.weight": "blk.12.q.weight", "gguf_only": "extra",
    }  # fmt: skip
    hf = SourceMap.match(store("safetensors", model__embed__weight=(4, 2), layers__0__n__weight=(2,)), ROWS, ())
    assert hf.has("e.weight") and hf.has("blk.0.n.weight") and not hf.has("gguf_only")
    assert hf.shape("e.weight") == (4, 2)
    with pytest.raises(MissingTensorError, match="missing tensor: gguf_only"):
        hf.shape("gguf_only")


@pytest.mark.parametrize(
    "name",
    ["blk.x.q.weight", "blk.01.q.weight", "blk.1.q.weights", "xblk.1.q.weight", "blk.1.q_weight", "blk.{i}.q.weight"],
)
def test_names_match_exactly_or_not_at_all(name: str) -> None:
    with pytest.raises(UnsupportedError, match="no tensor of this family has that name"):
        SourceMap.match(store("gguf", **{name: (4, 2)}), ROWS, ())


def test_ignored_patterns_and_unknown_names() -> None:
    found = SourceMap.match(store("gguf", vision__a=(1,), vision__b=(1,)), ROWS, ("vision.*",))
    assert not found.sources
    many = store("gguf", **{f"odd{i}": (1,) for i in range(6)})
    with pytest.raises(UnsupportedError, match="tensor odd0, odd1, odd2, odd3 and 2 more: no tensor"):
        SourceMap.match(many, ROWS, ())


def test_check_is_complete_both_ways() -> None:
    sources = SourceMap.match(store("gguf", tok__weight=(4, 2), out__weight=(4, 2)), ROWS, ())
    sources.check({"e.weight": (4, 2)})  # the spare head may be left over
    with pytest.raises(MissingTensorError, match=r"missing tensor: blk.0.q.weight: the config asks for it"):
        sources.check({"e.weight": (4, 2), "blk.0.q.weight": (2, 2)})
    with pytest.raises(TensorShapeError, match=r"tensor tok.weight: shape \[4, 2\], the config asks for \[5, 2\]"):
        sources.check({"e.weight": (5, 2)})
    with pytest.raises(CheckpointError, match=r"unused tensor: tok.weight: the config has no place for it"):
        sources.check({"head.weight": (4, 2)})


def test_a_constant_counts_as_used() -> None:
    checkpoint = store("gguf", tok__weight=(4, 2), extra=(3,))
    sources = SourceMap.match(checkpoint, ROWS, ())
    with pytest.raises(CheckpointError, match="unused tensor: extra"):
        sources.check({"e.weight": (4, 2)})
    found = sources.constant("gguf_only")
    assert found is not None and np.array_equal(found, checkpoint.arrays["extra"])
    sources.check({"e.weight": (4, 2)})
    assert sources.constant("head.weight") is None


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_stored_rope_divisors_are_part_of_the_graph_or_refused(name: str) -> None:
    """Gemma 3 files have none, so one that turns up could change the numbers and is an error."""
    complete = checkpoint_of(name, "plain")
    divisors = np.linspace(1, 4, 10, dtype=np.float32)
    with_table = MemoryCheckpoint("gguf", dict(complete.config), complete.arrays | {"rope_freqs.weight": divisors})
    if name == "gemma3_text":
        with pytest.raises(CheckpointError, match=r"unused tensor: rope_freqs.weight"):
            build_model(family(name), with_table)
        return
    built = build_model(family(name), with_table)
    plain = build_model(family(name), checkpoint_of(name, "plain"))
    assert built.notes == plain.notes
    ratio = np.divide(plain.graph.view().ropes["rope"].inv_freq, built.graph.view().ropes["rope"].inv_freq)
    np.testing.assert_allclose(ratio, divisors, rtol=1e-6)


def test_a_head_that_the_config_ties_is_named() -> None:
    complete = checkpoint_of("llama", "plain")
    head = np.zeros_like(complete.arrays["token_embd.weight"])
    config = dict(complete.config) | {"tie_word_embeddings": True}
    built = build_model(family("llama"), MemoryCheckpoint("gguf", config, complete.arrays | {"output.weight": head}))
    assert built.notes[0] == "output.weight is in the checkpoint and not stored: nothing reads it"


def test_rows_of_each_head_are_unpaired() -> None:
    """Stored 2i+j is graph j*dim/2 + i, as rotating pairs (2i, 2i+1) is rotating (i, i + dim/2)."""
    checkpoint = store("gguf", blk__0__q__weight=(12, 3))
    weights = Weights(SourceMap.match(checkpoint, ROWS, ()), head_dim=6)
    stored = checkpoint.arrays["blk.0.q.weight"]
    want = np.concatenate([stored[h + np.array([0, 2, 4, 1, 3, 5])] for h in (0, 6)])
    assert np.array_equal(weights.read("blk.0.q.weight"), want)
    for start in range(13):
        for stop in range(start + 1, 13):
            assert np.array_equal(weights.read("blk.0.q.weight", start, stop), want[start:stop])


def test_a_band_reads_only_the_heads_it_touches() -> None:
    checkpoint = store("gguf", blk__0__q__weight=(12, 3))
    weights = Weights(SourceMap.match(checkpoint, ROWS, ()), head_dim=4)
    weights.read("blk.0.q.weight", 5, 7)
    assert checkpoint.reads == [("blk.0.q.weight", 4, 8)]


def test_blocks_follow_the_row_order_and_stop_at_changed_values() -> None:
    blocks = np.arange(16, dtype=np.uint8).reshape(8, 2)
    checkpoint = store(
        "gguf", {"blk.0.q.weight": blocks, "tok.weight": blocks}, blk__0__q__weight=(8, 3), tok__weight=(8, 3)
    )
    weights = Weights(SourceMap.match(checkpoint, ROWS, ()), head_dim=4)
    assert np.array_equal(weights.read_blocks("blk.0.q.weight", 4, 7), blocks[[4, 6, 5]])
    assert np.array_equal(weights.read_blocks("e.weight", 1, 3), blocks[1:3])
    plain = store("safetensors", {"layers.0.n.weight": blocks}, layers__0__n__weight=(8,), model__embed__weight=(8, 3))
    weights = Weights(SourceMap.match(plain, ROWS, ()), head_dim=4)
    assert weights.read_blocks("blk.0.n.weight") is None and weights.read_blocks("e.weight") is None


def test_plus_one_is_added_to_safetensors_norms_only() -> None:
    for kind, name in (("safetensors", "layers.0.n.weight"), ("gguf", "blk.0.n.weight")):
        checkpoint = MemoryCheckpoint(kind, {}, {name: np.array([0.5, -1.0], np.float32)})
        got = Weights(SourceMap.match(checkpoint, ROWS, ()), 2).read("blk.0.n.weight")
        assert got.dtype == np.float32
        assert got.tolist() == ([1.5, 0.0] if kind == "safetensors" else [0.5, -1.0])


def test_unknown_graph_name_is_refused() -> None:
    with pytest.raises(MissingTensorError, match="missing tensor: nothing"):
        Weights(SourceMap.match(store("gguf"), ROWS, ()), 2).read("nothing")


def checkpoint_of(name: str, tiny: str, **changes: object) -> MemoryCheckpoint:
    """A GGUF checkpoint that holds exactly what a tiny config asks for."""
    config = {k: v for k, v in family(name).parity.tiny[tiny].items() if k != "tie_word_embeddings"}
    rows = {row.graph: row for row in family(name).tensors}
    arrays = {}
    for graph_name, array in random_weights(tiny_graph(family(name), dict(config))).items():
        parts = graph_name.split(".")
        layer = parts[1] if parts[0] == "blk" else ""
        row = rows[graph_name.replace(f"blk.{layer}.", "blk.{i}.") if layer else graph_name]
        arrays[row.gguf.replace("{i}", layer)] = array
    return MemoryCheckpoint("gguf", config | changes, arrays)


@pytest.mark.parametrize(("name", "tiny"), [(f, t) for f in FAMILIES for t in family(f).parity.tiny])
def test_every_family_is_complete(name: str, tiny: str) -> None:
    """Dropping any one tensor, or adding a layer's worth of one, is an error that names it."""
    assert build_model(family(name), checkpoint_of(name, tiny)).notes == (
        "the output head is the embedding table, stored once",
    )
    complete = checkpoint_of(name, tiny)
    for dropped in list(complete.arrays)[:: max(1, len(complete.arrays) // 5)]:
        left = {key: value for key, value in complete.arrays.items() if key != dropped}
        with pytest.raises(MissingTensorError, match="missing tensor"):
            build_model(family(name), MemoryCheckpoint("gguf", dict(checkpoint_of(name, tiny).config), left))
    extra = complete.arrays | {"blk.40.attn_norm.weight": np.ones(8, np.float32)}
    with pytest.raises(CheckpointError, match=r"unused tensor: blk.40.attn_norm.weight"):
        build_model(family(name), MemoryCheckpoint("gguf", dict(checkpoint_of(name, tiny).config), extra))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("key", ["num_key_value_heads", "intermediate_size", "head_dim"])
def test_a_shape_that_contradicts_the_config_is_named(name: str, key: str) -> None:
    tiny = dict(family(name).parity.tiny["plain"])
    head_dim = tiny.get("head_dim", tiny["hidden_size"] // tiny["num_attention_heads"])
    value = {"head_dim": head_dim + 4}.get(key, tiny["num_attention_heads"])
    with pytest.raises(TensorShapeError, match=r"tensor blk.0.(attn_q|attn_k|ffn_gate|attn_q_norm).weight: shape"):
        build_model(family(name), checkpoint_of(name, "plain", **{key: value}))
