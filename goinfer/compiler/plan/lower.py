"""The fused graph as steps: which kernel does each op, in what precision values travel, what shares a buffer.

A value is kept as f32 rows until a consumer wants int8 activations; then the op that makes it also quantises it, if
it can. The residual stream is one f32 buffer updated in place: by the epilogue of the matmul that makes the branch,
or by the norm that follows where the branch is normed first.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from goinfer.bundle_format.kernel_abi import ABI_VERSION, GROUP, PANEL, partial_bytes, round_up
from goinfer.bundle_format.plan import KVGroup, Plan, RopeTable, Weight
from goinfer.codegen.errors import CompileError
from goinfer.compiler.checkpoints.ggml_grids import is_four_bit
from goinfer.compiler.graph import GraphOp, GraphView, Param
from goinfer.compiler.plan.builder import PlanBuilder, SourceTypes, StoredParam
from goinfer.compiler.quant.recipes import Recipe

_CHUNK = 512
"""Values an element-wise unit covers: enough work for a claim, enough units for all threads."""

_BLOCK_BYTES, _TILE_ROWS, _FEWEST, _MOST = 256 << 10, 24, 48, 240
"""Activations that a matmul tile keeps in the second cache while panels of weights pass by, and the multiple, least
and largest number of rows (whole register tiles on every target)."""

RESIDUAL, FINAL_NORM = "x", "final_norm"


@dataclass
class _Lowering:
    """State of one lowering: where each value lies, and who consumes it."""

    view: GraphView
    build: PlanBuilder
    place: dict[int, str] = field(default_factory=dict)
    quantised: dict[int, str] = field(default_factory=dict)
    users: dict[int, list[GraphOp]] = field(default_factory=lambda: defaultdict(list))
    producer: dict[int, GraphOp] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    last_attention: GraphOp | None = None
    domain: str = "rows"
    """Rows that the next steps work on: all, or once nothing reads a row but itself those whose logits are wanted."""
    gated: dict[int, GraphOp] = field(default_factory=dict)
    """Products that make no step of their own: the gate_act that reads them makes it."""

    def param(self, op: GraphOp, name: str) -> Param:
        return self.view.params[op.operands[name]]

    def width(self, value: int) -> int:
        return int(self.view.types[value].shape[-1] or 0)


def lower(
    view: GraphView, recipe: Recipe, precision: Mapping[str, str] | None = None, sources: SourceTypes = lambda _: "F32"
) -> tuple[Plan, list[StoredParam]]:
    """Lower a fused graph. Returns the plan (weights without offsets yet) and the parameters in storage order.

    `precision` holds patterns of tensor names that a recipe may not store below 8 bits; `sources` tells what the
    checkpoint keeps a tensor in.
    """
    four_bit = any(is_four_bit(sources(part)) for param in view.params.values() for part in param.parts)
    build = PlanBuilder(recipe, tuple(precision or ()), sources, recipe.keeps_finer and four_bit)
    low = _Lowering(view, build)
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
                _group_name(window), window, layers, [s.n_kv_heads for s in states], [s.head_dim for s in states]
            )
        )
    return groups


def _group_name(window: int) -> str:
    return f"window{window}" if window else "full"


def _wants_codes(low: _Lowering, op: GraphOp) -> bool:
    """Whether an op reads its x as int8 activations."""
    if op.name not in ("linear", "lm_head"):
        return False
    role = "head" if op.name == "lm_head" else low.param(op, "weight").role
    return low.build.recipe.choose(role).activations == "int8"


def _rep_for_users(low: _Lowering, value: int) -> str:
    """q8 if every reader wants codes, else f32 (a reader that wants codes then gets a quantise step)."""
    readers = [u for u in low.users[value] if u.name != "hidden"]
    return "q8" if readers and all(_wants_codes(low, u) for u in readers) else "f32"


def _make(low: _Lowering, value: int, label: str, rep: str) -> str:
    """Declare the buffer of a value."""
    operand = low.build.buffer(label, low.width(value), rep)
    (low.quantised if rep == "q8" else low.place)[value] = operand
    return operand


def _codes(low: _Lowering, value: int, label: str) -> str:
    """The value as q8 rows, quantised by a step of its own if it is not yet."""
    if value not in low.quantised:
        source = low.place[value]
        out = low.build.buffer(f"{label}.q8", low.width(value), "q8")
        low.build.step(
            f"{label}.quantise", low.build.kernel("quantise", {"domain": low.domain}), [source, out],
            reads=[source], writes=[out], domain=low.domain,
            ints=[low.width(value), low.build.stride(source), low.build.stride(out)],
        )  # fmt: skip
        low.quantised[value] = out
    return low.quantised[value]


def _nothing(low: _Lowering, op: GraphOp) -> None:
    """Facts and markers make no step."""


def _hidden(low: _Lowering, op: GraphOp) -> None:
    low.ends[op.attrs["index"]] = len(low.build.steps)


def _embed(low: _Lowering, op: GraphOp) -> None:
    param, (out,) = low.param(op, "weight"), op.results
    weight = low.build.weight(param)
    fmt = low.build.stored[param.name].format
    low.place[out] = low.build.buffer(RESIDUAL, low.width(out), "f32")
    low.build.step(
        op.label, low.build.kernel("embed", {"format": fmt}), ["io:tokens", weight, low.place[out]],
        reads=[], writes=[low.place[out]], floats=[op.attrs["scale"]],
        ints=[round_up(param.shape[1], GROUP) // GROUP, low.build.stride(low.place[out]), param.shape[1]],
    )  # fmt: skip


def _rms_norm(low: _Lowering, op: GraphOp) -> None:
    x, (out,) = op.operands["x"], op.results
    if op.attrs["size"] != low.width(x):
        raise CompileError(f"plan: {op.label}: a norm of {op.attrs['size']} of {low.width(x)} columns has no kernel")
    _norm_step(low, op, low.place[x], out, "none", None)


def _add_norm(low: _Lowering, op: GraphOp) -> None:
    """x += delta (or its norm), then normed; the plain addition was done by the matmul that made delta."""
    total, normed = op.results
    x, delta = op.operands["x"], op.operands["delta"]
    low.place[total] = low.place[x]
    merged = delta not in low.place
    add = "none" if merged else ("normed" if "post_weight" in op.operands else "plain")
    _norm_step(low, op, low.place[x], normed, add, None if merged else low.place[delta])


def _norm_step(low: _Lowering, op: GraphOp, x: str, out: int, add: str, delta: str | None) -> None:
    """Emit a norm; the one before the head stays f32 in a buffer of its own, so that a caller can see it."""
    if any(u.name == "lm_head" for u in low.users[out]):
        low.place[out] = target = low.build.buffer(FINAL_NORM, low.width(out), "f32")
        rep = "f32"
    else:
        rep = _rep_for_users(low, out)
        target = _make(low, out, op.label, rep)
    attrs = {"norm": "rms", "add": add, "out": rep, "domain": low.domain}
    weight = low.build.weight(low.param(op, "weight"))
    post = low.build.weight(low.param(op, "post_weight")) if add == "normed" else "none"
    low.build.step(
        op.label, low.build.kernel("norm", attrs), [x, weight, target, delta or "none", post],
        reads=[x] + ([delta] if delta else []), writes=[target] + ([x] if add != "none" else []), domain=low.domain,
        ints=[low.view.info.hidden, low.build.stride(x), low.build.stride(target),
              low.build.stride(delta) if delta else 0],
        floats=[op.attrs["eps"], op.attrs.get("post_eps", 0.0)],
    )  # fmt: skip


def _linear(low: _Lowering, op: GraphOp) -> None:
    """A matmul; its epilogue adds into the residual stream when the only reader is a plain add_norm."""
    (out,) = op.results
    users = low.users[out]
    if len(users) == 1 and users[0].name == "gate_act" and users[0].attrs["size"] % GROUP == 0:
        low.gated[out] = op
        return
    adds = len(users) == 1 and users[0].name == "add_norm" and "post_weight" not in users[0].operands
    adds = adds and users[0].operands["delta"] == out
    if adds:
        target = low.place[users[0].operands["x"]]
    else:
        target = _make(low, out, op.label, "f32")
    _matmul(low, op, target, "add" if adds else "store", low.param(op, "weight").role)


@dataclass(frozen=True)
class _Factors:
    """What a matmul reads: operands of weight, rows and bias, the kernel's format, K groups, bytes between rows."""

    weight: str
    x: str
    bias: str
    format: str
    groups: int
    stride: int

    @property
    def row_tile(self) -> int:
        """Rows of a tile."""
        return min(_MOST, max(_FEWEST, _BLOCK_BYTES // self.stride // _TILE_ROWS * _TILE_ROWS))


def _factors(low: _Lowering, op: GraphOp, role: str) -> _Factors:
    param, x = low.param(op, "weight"), op.operands["x"]
    weight = low.build.weight(param)
    stored = low.build.stored[param.name].format
    codes = low.build.recipe.choose(role).activations == "int8"
    source = _codes(low, x, op.label + ".x") if codes else low.place[x]
    bias = low.build.weight(low.param(op, "bias")) if "bias" in op.operands else "none"
    fmt = "int8int8" if codes and stored == "int8" else stored
    return _Factors(weight, source, bias, fmt, round_up(param.shape[1], GROUP) // GROUP, low.build.stride(source))


def _matmul(low: _Lowering, op: GraphOp, target: str, epilogue: str, role: str) -> None:
    f = _factors(low, op, role)
    attrs = {"format": f.format, "epilogue": epilogue, "bias": f.bias != "none", "domain": low.domain}
    low.build.step(
        op.label, low.build.kernel("matmul", attrs), [f.weight, f.x, target, f.bias],
        reads=[f.x] + ([target] if epilogue == "add" else []), writes=[target], domain=low.domain,
        row_tile=f.row_tile, units=round_up(low.param(op, "weight").shape[0], PANEL) // PANEL,
        ints=[f.groups, f.stride, _logits_stride(low) if target == "io:logits" else low.build.stride(target)],
    )  # fmt: skip


def _logits_stride(low: _Lowering) -> int:
    return round_up(4 * round_up(low.view.info.vocab, GROUP), 64)


def _qkv_post(low: _Lowering, op: GraphOp) -> None:
    (out,) = op.results
    a, qkv = op.attrs, low.place[op.operands["qkv"]]
    attention = next(u for u in low.users[out] if u.name == "attention")
    if a["interleaved"] or (a["table"] and low.view.ropes[a["table"]].dim != a["head_dim"]):
        raise CompileError(f"plan: {op.label}: interleaved or partial rotary embedding has no kernel")
    attrs = {
        "head_dim": a["head_dim"], "n_heads": a["n_heads"], "n_kv_heads": a["n_kv_heads"], "kv": "{kv}",
        "rope": bool(a["table"]), "q_norm": "q_norm" in op.operands, "k_norm": "k_norm" in op.operands,
    }  # fmt: skip
    group, state = _group_name(low.view.kv_layers[a["layer"]].window), f"kv:{a['layer']}"
    target = _make(low, out, op.label, "f32")
    norms = [low.build.weight(low.param(op, n)) if n in op.operands else "none" for n in ("q_norm", "k_norm")]
    low.build.step(
        op.label, low.build.kernel("qkv_post", attrs),
        [qkv, target, f"rope:{a['table']}" if a["table"] else "none", f"pages:{group}", "io:positions", "io:slots",
         *norms],
        reads=[qkv], writes=[target, state],
        ints=[low.build.stride(qkv), low.build.stride(target), state, "max_pages"],
        floats=[a["eps"], attention.attrs["scale"]],
    )  # fmt: skip


def _attention(low: _Lowering, op: GraphOp) -> None:
    (out,) = op.results
    a, q = op.attrs, low.place[op.operands["q"]]
    rep = _rep_for_users(low, out) if a["head_dim"] % GROUP == 0 else "f32"
    attrs = {
        "head_dim": a["head_dim"], "n_heads": a["n_heads"], "n_kv_heads": a["n_kv_heads"], "kv": "{kv}", "out": rep,
        "softcap": a["softcap"] > 0, "sinks": "sinks" in op.operands,
    }  # fmt: skip
    group, state = _group_name(low.view.kv_layers[a["layer"]].window), f"kv:{a['layer']}"
    target = _make(low, out, op.label, rep)
    sinks = low.build.weight(low.param(op, "sinks")) if attrs["sinks"] else "none"
    # A "row" of this buffer holds a block of the context of a row that is split, not one of the forward's rows.
    partials_of_a_block = a["n_kv_heads"] * partial_bytes(a["head_dim"], a["n_heads"] // a["n_kv_heads"])
    partials = low.build.buffer(f"{op.label}.partials", partials_of_a_block // 4, "f32")
    last = op is low.last_attention
    tiles = "att_wanted" if last else "att_tiles"
    low.build.step(
        op.label, low.build.kernel("attention", attrs),
        [q, target, f"pages:{group}", "io:positions", "io:slots", f"io:{tiles}", sinks, partials, "io:att_counters"],
        reads=[q, state], writes=[target, partials], domain=tiles, units=a["n_kv_heads"],
        ints=[low.build.stride(q), low.build.stride(target), state, "max_pages", a["window"],
              low.build.stride(partials)],
        floats=[a["softcap"]],
    )  # fmt: skip
    if last:
        _keep_wanted(low, op)


def _keep_wanted(low: _Lowering, op: GraphOp) -> None:
    """After the last op that reads other rows, only rows whose logits are wanted go on, moved to the front.

    Every buffer that a later op reads is moved: the residual stream, what was attended, and whatever else runs beside.
    """
    later = set(map(id, low.view.ops[low.view.ops.index(op) + 1 :]))
    live = sorted({
        operand for places in (low.place, low.quantised) for value, operand in places.items()
        if any(id(user) in later for user in low.users[value])
    })  # fmt: skip
    for operand in live:
        low.build.step(
            f"{op.label}.wanted.{operand.removeprefix('buf:')}", low.build.kernel("keep_rows", {}),
            [operand, "io:wanted"], reads=[operand], writes=[operand], domain="fixed", ints=[low.build.stride(operand)],
        )  # fmt: skip
    low.domain = "wanted"


def _gate_act(low: _Lowering, op: GraphOp) -> None:
    """In one step with the product where its halves are whole groups, else over the product's rows."""
    (out,) = op.results
    size, rep = op.attrs["size"], _rep_for_users(low, out)
    if product := low.gated.get(op.operands["gate_up"]):
        _matmul_gated(low, product, op, _make(low, out, op.label, rep), rep)
        return
    source = low.place[op.operands["gate_up"]]
    target = _make(low, out, op.label, rep)
    low.build.step(
        op.label, low.build.kernel("gate_act", {"act": op.attrs["fn"], "out": rep, "gated": True}), [source, target],
        reads=[source], writes=[target], units=-(-round_up(size, GROUP) // _CHUNK),
        ints=[size, low.build.stride(source), low.build.stride(target), _CHUNK],
    )  # fmt: skip


def _matmul_gated(low: _Lowering, product: GraphOp, op: GraphOp, target: str, rep: str) -> None:
    size, f = op.attrs["size"], _factors(low, product, low.param(product, "weight").role)
    attrs = {"format": f.format, "bias": f.bias != "none", "domain": low.domain, "act": op.attrs["fn"], "out": rep}
    low.build.step(
        op.label, low.build.kernel("matmul_gated", attrs), [f.weight, f.x, target, f.bias],
        reads=[f.x], writes=[target], domain=low.domain, row_tile=f.row_tile, units=size // GROUP,
        ints=[f.groups, f.stride, low.build.stride(target), size],
    )  # fmt: skip


def _lm_head(low: _Lowering, op: GraphOp) -> None:
    """Logits into the caller's buffer for rows that want them, the greedy token for rows that want just that.

    A cap may make two logits equal: then the token is found in the finished logits.
    """
    if op.attrs["scale"] != 1.0:
        raise CompileError(f"plan: {op.label}: a logit scale of {op.attrs['scale']} has no kernel")
    vocab, stride, capped = low.view.info.vocab, _logits_stride(low), op.attrs["softcap"] > 0
    if not capped:
        _greedy_head(low, op)
    low.domain = "logits"
    _matmul(low, op, "io:logits", "store", "head")
    if capped:
        low.build.step(
            f"{op.label}.softcap", low.build.kernel("softcap", {"domain": "logits"}), ["io:logits"],
            reads=["io:logits"], writes=["io:logits"], domain="logits", units=-(-vocab // 4096),
            ints=[vocab, stride, 0, 4096], floats=[op.attrs["softcap"]],
        )  # fmt: skip
        low.build.step(
            "greedy", low.build.kernel("argmax", {}), ["io:logits", "io:greedy"],
            reads=["io:logits"], writes=["io:greedy"], domain="logits", ints=["choices", stride],
        )  # fmt: skip


def _greedy_head(low: _Lowering, op: GraphOp) -> None:
    """The greedy token of rows of which nothing else is wanted: no logits are written."""
    f = _factors(low, op, "head")
    panels = round_up(low.param(op, "weight").shape[0], PANEL) // PANEL
    best = low.build.buffer(f"{op.label}.best", 2 * panels, "f32")
    attrs = {"format": f.format, "bias": f.bias != "none", "domain": "greedy"}
    low.build.step(
        f"{op.label}.greedy", low.build.kernel("matmul_best", attrs), [f.weight, f.x, best, f.bias],
        reads=[f.x], writes=[best], domain="greedy", row_tile=f.row_tile, units=panels,
        ints=[f.groups, f.stride, low.build.stride(best), "choices"],
    )  # fmt: skip
    low.build.step(
        "greedy", low.build.kernel("best_of", {}), [best, "io:greedy"], reads=[best], writes=["io:greedy"],
        domain="greedy", ints=[panels, low.build.stride(best)],
    )  # fmt: skip


_LOWER = {
    "token_ids": _nothing, "output": _nothing, "hidden": _hidden, "embed": _embed, "rms_norm": _rms_norm,
    "add_norm": _add_norm, "linear": _linear, "qkv_post": _qkv_post, "attention": _attention,
    "gate_act": _gate_act, "lm_head": _lm_head,
}  # fmt: skip
