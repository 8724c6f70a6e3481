"""One text golden a pass: the graph before, a line, the graph after. `python -m tests.graph.test_passes` rewrites
the second half of each file, to be read before it is committed.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from goinfer.compiler.graph import Graph
from goinfer.compiler.interpret import run
from goinfer.compiler.ops import GraphError
from goinfer.compiler.passes.pipeline import PASSES, run_passes
from goinfer.compiler.verify import REWRITING, verify
from goinfer.families.registry import FAMILIES, family
from tests.families.memory_checkpoint import random_weights, tiny_graph

GOLDENS = Path(__file__).parent / "passes"
AFTER = "// ---- after ----\n"
BY_NAME = {step.__name__: step for step in PASSES}


def apply(name: str, text: str) -> Graph:
    graph = Graph.parse(text)
    BY_NAME[name](graph)
    return graph


def test_every_pass_has_a_golden() -> None:
    assert {path.stem for path in GOLDENS.glob("*.mlir")} == set(BY_NAME)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_golden(name: str) -> None:
    before, _, after = (GOLDENS / f"{name}.mlir").read_text().partition(AFTER)
    verify(Graph.parse(before), REWRITING)
    graph = apply(name, before)
    verify(graph, REWRITING)
    assert graph.text() == after
    assert before.strip() != after.strip()


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_pass_keeps_the_numbers(name: str) -> None:
    """Bit equal: a pass moves no rounding in the reference."""
    before = Graph.parse((GOLDENS / f"{name}.mlir").read_text().partition(AFTER)[0])
    weights = random_weights(before)
    after = apply(name, before.text())
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    traces = [run(g.view(), ids, lambda n, a, b: weights[n][a:b]) for g in (before, after)]
    assert np.array_equal(traces[0].logits, traces[1].logits)
    assert np.array_equal(traces[0].hidden, traces[1].hidden)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_pass_is_idempotent(name: str) -> None:
    graph = apply(name, (GOLDENS / f"{name}.mlir").read_text().partition(AFTER)[0])
    once = graph.text()
    BY_NAME[name](graph)
    assert graph.text() == once


@pytest.mark.parametrize(("name", "tiny"), [(f, t) for f in FAMILIES for t in family(f).parity.tiny])
def test_pipeline_fuses_every_family(name: str, tiny: str) -> None:
    config = dict(family(name).parity.tiny[tiny])
    config.pop("tie_word_embeddings", None)
    graph = tiny_graph(family(name), config)
    weights = random_weights(graph)
    ids = np.random.default_rng(1).integers(0, config["vocab_size"], 20)
    before = run(graph.view(), ids, lambda n, a, b: weights[n][a:b])
    seen = []
    run_passes(graph, lambda step, g: seen.append(step))
    assert seen == [step.__name__ for step in PASSES]
    after = run(graph.view(), ids, lambda n, a, b: weights[n][a:b])
    assert np.array_equal(before.logits, after.logits)
    assert np.array_equal(before.hidden, after.hidden)
    counts = [op.name for op in graph.view().ops]
    layers = config["num_hidden_layers"]
    assert counts.count("linear") == 4 * layers
    assert counts.count("qkv_post") == counts.count("attention") == counts.count("gate_act") == layers
    assert counts.count("add_norm") == 2 * layers and counts.count("rms_norm") == 1


def test_a_norm_weight_that_several_norms_share_stays_before_them() -> None:
    """Moving it down to the add that is fused last would put it behind its first user."""
    text = (GOLDENS / "fuse_norm.mlir").read_text().partition(AFTER)[0]
    lines = [line for line in text.splitlines() if 'name = "n1.weight"' not in line]
    shared = "\n".join(lines)
    first, second = (re.search(rf'(%\d+) = "giw.param"\(\) {{name = "n{i}.weight"', text).group(1) for i in (0, 1))
    graph = Graph.parse(re.sub(rf"{second}(?=[),])", first, shared))
    BY_NAME["fuse_norm"](graph)
    verify(graph, REWRITING)


def test_pipeline_names_what_it_could_not_fuse() -> None:
    """A k that is rotated in another way than q keeps the layer apart, and the lowering has no such ops."""
    text = (GOLDENS / "qkv_post.mlir").read_text().partition(AFTER)[0]
    odd = text.replace('interleaved = false, label = "k_rope"', 'interleaved = true, label = "k_rope"')
    with pytest.raises(GraphError, match=r"after pass dce: slice q: the op is not part of the fused stage"):
        run_passes(Graph.parse(odd))


if __name__ == "__main__":
    for path in sorted(GOLDENS.glob("*.mlir")):
        source = path.read_text().partition(AFTER)[0]
        path.write_text(source + AFTER + apply(path.stem, source).text())
