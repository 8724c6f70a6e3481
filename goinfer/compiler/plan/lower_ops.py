"""Lowering of everything between the matrix products: embedding, norms, q|k|v into the cache, attention."""

from goinfer.bundle_format.kernel_abi import GROUP, partial_bytes, round_up
from goinfer.codegen.errors import CompileError
from goinfer.compiler.graph import GraphOp
from goinfer.compiler.plan.lowering import FINAL_NORM, RESIDUAL, Lowering, declare, group_name, rep_for_users


def nothing(low: Lowering, op: GraphOp) -> None:
    """Facts and markers make no step."""


def hidden(low: Lowering, op: GraphOp) -> None:
    """A layer ends here."""
    low.ends[op.attrs["index"]] = len(low.build.steps)


def embed(low: Lowering, op: GraphOp) -> None:
    """Token ids to the residual stream."""
    param, (out,) = low.param(op, "weight"), op.results
    weight = low.build.weight(param)
    fmt = low.build.stored[param.name].format
    low.place[out] = low.build.buffer(RESIDUAL, low.width(out), "f32")
    low.build.step(
        op.label, low.build.kernel("embed", {"format": fmt}), ["io:tokens", weight, low.place[out]],
        reads=[], writes=[low.place[out]], floats=[op.attrs["scale"]],
        ints=[round_up(param.shape[1], GROUP) // GROUP, low.build.stride(low.place[out]), param.shape[1]],
    )  # fmt: skip


def rms_norm(low: Lowering, op: GraphOp) -> None:
    """A norm of its own. Raises CompileError for one over a part of the row."""
    x, (out,) = op.operands["x"], op.results
    if op.attrs["size"] != low.width(x):
        raise CompileError(f"plan: {op.label}: a norm of {op.attrs['size']} of {low.width(x)} columns has no kernel")
    _norm_step(low, op, low.place[x], out, "none", None)


def add_norm(low: Lowering, op: GraphOp) -> None:
    """x += delta (or its norm), then normed; the plain addition was done by the matmul that made delta."""
    total, normed = op.results
    x, delta = op.operands["x"], op.operands["delta"]
    low.place[total] = low.place[x]
    merged = delta not in low.place
    add = "none" if merged else ("normed" if "post_weight" in op.operands else "plain")
    _norm_step(low, op, low.place[x], normed, add, None if merged else low.place[delta])


def _norm_step(low: Lowering, op: GraphOp, x: str, out: int, add: str, delta: str | None) -> None:
    """Emit a norm; the one before the head stays f32 in a buffer of its own, so that a caller can see it."""
    if any(u.name == "lm_head" for u in low.users[out]):
        low.place[out] = target = low.build.buffer(FINAL_NORM, low.width(out), "f32")
        rep = "f32"
    else:
        rep = rep_for_users(low, out)
        target = declare(low, out, op.label, rep)
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


def qkv_post(low: Lowering, op: GraphOp) -> None:
    """Head norms, rotary positions, the cache. Raises CompileError for a rotation that has no kernel."""
    (out,) = op.results
    a, qkv = op.attrs, low.place[op.operands["qkv"]]
    attention = next(u for u in low.users[out] if u.name == "attention")
    if a["interleaved"] or (a["table"] and low.view.ropes[a["table"]].dim != a["head_dim"]):
        raise CompileError(f"plan: {op.label}: interleaved or partial rotary embedding has no kernel")
    attrs = {
        "head_dim": a["head_dim"], "n_heads": a["n_heads"], "n_kv_heads": a["n_kv_heads"], "kv": "{kv}",
        "rope": bool(a["table"]), "q_norm": "q_norm" in op.operands, "k_norm": "k_norm" in op.operands,
    }  # fmt: skip
    group, state = group_name(low.view.kv_layers[a["layer"]].window), f"kv:{a['layer']}"
    target = declare(low, out, op.label, "f32")
    norms = [low.build.weight(low.param(op, n)) if n in op.operands else "none" for n in ("q_norm", "k_norm")]
    low.build.step(
        op.label, low.build.kernel("qkv_post", attrs),
        [qkv, target, f"rope:{a['table']}" if a["table"] else "none", f"pages:{group}", "io:positions", "io:slots",
         *norms],
        reads=[qkv], writes=[target, state],
        ints=[low.build.stride(qkv), low.build.stride(target), state, "max_pages"],
        floats=[a["eps"], attention.attrs["scale"]],
    )  # fmt: skip


def attention(low: Lowering, op: GraphOp) -> None:
    """Attention over the cache; after the last one, only wanted rows go on."""
    (out,) = op.results
    a, q = op.attrs, low.place[op.operands["q"]]
    rep = rep_for_users(low, out) if a["head_dim"] % GROUP == 0 else "f32"
    attrs = {
        "head_dim": a["head_dim"], "n_heads": a["n_heads"], "n_kv_heads": a["n_kv_heads"], "kv": "{kv}", "out": rep,
        "softcap": a["softcap"] > 0, "sinks": "sinks" in op.operands,
    }  # fmt: skip
    group, state = group_name(low.view.kv_layers[a["layer"]].window), f"kv:{a['layer']}"
    target = declare(low, out, op.label, rep)
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


def _keep_wanted(low: Lowering, op: GraphOp) -> None:
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
            f"{operand.removeprefix('buf:')}.wanted", low.build.kernel("keep_rows", {}),
            [operand, "io:wanted"], reads=[operand], writes=[operand], domain="fixed", ints=[low.build.stride(operand)],
        )  # fmt: skip
    low.domain = "wanted"
