"""The fused graph as steps: which kernel does each op, in what precision values travel, what shares a buffer.

A value is kept as f32 rows until a consumer wants int8 activations; then the op that makes it also quantises it, if
it can. The residual stream is one f32 buffer updated in place: by the epilogue of the matmul that makes the branch,
or by the norm that follows where the branch is normed first.
"""

from collections.abc import Callable, Mapping

from goinfer.bundle_format.kernel_abi import ABI_VERSION, round_up
from goinfer.bundle_format.plan import KVGroup, Plan, RopeTable, Weight
from goinfer.codegen.errors import CompileError
from goinfer.compiler.checkpoints.ggml_grids import is_four_bit
from goinfer.compiler.graph import GraphOp, GraphView
from goinfer.compiler.plan import lower_matmul as products
from goinfer.compiler.plan import lower_ops as ops
from goinfer.compiler.plan.builder import PlanBuilder, SourceTypes, StoredParam
from goinfer.compiler.plan.lowering import FINAL_NORM, RESIDUAL, Lowering, group_name
from goinfer.compiler.quant.recipes import Recipe

_LOWER: dict[str, Callable[[Lowering, GraphOp], None]] = {
    "token_ids": ops.nothing, "output": ops.nothing, "hidden": ops.hidden, "embed": ops.embed,
    "rms_norm": ops.rms_norm, "add_norm": ops.add_norm, "qkv_post": ops.qkv_post, "attention": ops.attention,
    "linear": products.linear, "gate_act": products.gate_act, "lm_head": products.lm_head,
}  # fmt: skip


def lower(
    view: GraphView, recipe: Recipe, precision: Mapping[str, str] | None = None, sources: SourceTypes = lambda _: "F32"
) -> tuple[Plan, list[StoredParam]]:
    """Lower a fused graph. Returns the plan (weights without offsets yet) and the parameters in storage order.

    `precision` holds patterns of tensor names that a recipe may not store below 8 bits; `sources` tells what the
    checkpoint keeps a tensor in.
    """
    four_bit = any(is_four_bit(sources(part)) for param in view.params.values() for part in param.parts)
    build = PlanBuilder(recipe, tuple(precision or ()), sources, recipe.keeps_finer and four_bit)
    low = Lowering(view, build)
    for op in view.ops:
        for value in op.operands.values():
            low.users[value].append(op)
        for value in op.results:
            low.producer[value] = op
    low.last_attention = next((op for op in reversed(view.ops) if op.name == "attention"), None)
    for op in view.ops:
        if op.name not in _LOWER:
            raise CompileError(f"plan: op {op.name} ({op.label}) has no lowering")
        _LOWER[op.name](low, op)
    buffers, steps = low.build.finish([RESIDUAL, FINAL_NORM])
    info = view.info
    plan = Plan(
        abi=ABI_VERSION, vocab=info.vocab, hidden=info.hidden, n_layers=info.n_layers, max_context=info.context,
        residual=RESIDUAL, final_norm=FINAL_NORM, layer_ends=[low.ends[i] for i in range(info.n_layers + 1)],
        buffers=buffers, weights=[], rope_tables=_ropes(view), kv_groups=_kv_groups(view),
        kernels=[low.build.kernels[k] for k in sorted(low.build.kernels)], steps=steps,
    )  # fmt: skip
    return plan, list(low.build.stored.values())


def place_weights(stored: list[StoredParam]) -> list[Weight]:
    """Offsets in the weights section, in order of first use, each aligned to 64 bytes."""
    weights, offset = [], 0
    for s in stored:
        n, k = s.nk
        weights.append(Weight(s.param.name, s.format, n, k, offset, s.nbytes, list(s.param.parts), [], 0.0))
        offset += round_up(s.nbytes, 64)
    return weights


def _ropes(view: GraphView) -> list[RopeTable]:
    return [
        RopeTable(name, [float(x) for x in t.inv_freq], float(t.attention_factor))
        for name, t in sorted(view.ropes.items())
    ]


def _kv_groups(view: GraphView) -> list[KVGroup]:
    groups = []
    for window in sorted({kv.window for kv in view.kv_layers.values()}):
        layers = [i for i, kv in sorted(view.kv_layers.items()) if kv.window == window]
        states = [view.kv_layers[i] for i in layers]
        groups.append(
            KVGroup(
                group_name(window), window, layers, [s.n_kv_heads for s in states], [s.head_dim for s in states]
            )
        )
    return groups
