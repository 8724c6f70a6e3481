"""Lowering of matrix products: linears, the gated MLP, and the head with its logits or its greedy token."""

from dataclasses import dataclass

from goinfer.bundle_format.kernel_abi import GROUP, PANEL, round_up
from goinfer.codegen.errors import CompileError
from goinfer.compiler.graph import GraphOp
from goinfer.compiler.plan.lowering import Lowering, codes_of, declare, rep_for_users

_BLOCK_BYTES, _TILE_ROWS, _FEWEST, _MOST = 256 << 10, 24, 48, 240
"""Activations that a matmul tile keeps in the second cache while panels of weights pass by, and the multiple, least
and largest number of rows (whole register tiles on every target)."""

_CHUNK = 512
"""Values an element-wise unit covers: enough work for a claim, enough units for all threads."""


def linear(low: Lowering, op: GraphOp) -> None:
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
        target = declare(low, out, op.label, "f32")
    _matmul(low, op, target, "add" if adds else "store", low.param(op, "weight").role)


def gate_act(low: Lowering, op: GraphOp) -> None:
    """In one step with the product where its halves are whole groups, else over the product's rows."""
    (out,) = op.results
    size, rep = op.attrs["size"], rep_for_users(low, out)
    if product := low.gated.get(op.operands["gate_up"]):
        _matmul_gated(low, product, op, declare(low, out, op.label, rep), rep)
        return
    source = low.place[op.operands["gate_up"]]
    target = declare(low, out, op.label, rep)
    low.build.step(
        op.label, low.build.kernel("gate_act", {"act": op.attrs["fn"], "out": rep, "gated": True}), [source, target],
        reads=[source], writes=[target], units=-(-round_up(size, GROUP) // _CHUNK),
        ints=[size, low.build.stride(source), low.build.stride(target), _CHUNK],
    )  # fmt: skip


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


def _factors(low: Lowering, op: GraphOp, role: str) -> _Factors:
    param, x = low.param(op, "weight"), op.operands["x"]
    weight = low.build.weight(param)
    stored = low.build.stored[param.name].format
    codes = low.build.recipe.choose(role).activations == "int8"
    source = codes_of(low, x, op.label + ".x") if codes else low.place[x]
    bias = low.build.weight(low.param(op, "bias")) if "bias" in op.operands else "none"
    fmt = "int8int8" if codes and stored == "int8" else stored
    return _Factors(weight, source, bias, fmt, round_up(param.shape[1], GROUP) // GROUP, low.build.stride(source))


def _matmul(low: Lowering, op: GraphOp, target: str, epilogue: str, role: str) -> None:
    f = _factors(low, op, role)
    attrs = {"format": f.format, "epilogue": epilogue, "bias": f.bias != "none", "domain": low.domain}
    low.build.step(
        op.label, low.build.kernel("matmul", attrs), [f.weight, f.x, target, f.bias],
        reads=[f.x] + ([target] if epilogue == "add" else []), writes=[target], domain=low.domain,
        row_tile=f.row_tile, units=round_up(low.param(op, "weight").shape[0], PANEL) // PANEL,
        ints=[f.groups, f.stride, _logits_stride(low) if target == "io:logits" else low.build.stride(target)],
    )  # fmt: skip


def _matmul_gated(low: Lowering, product: GraphOp, op: GraphOp, target: str, rep: str) -> None:
    size, f = op.attrs["size"], _factors(low, product, low.param(product, "weight").role)
    attrs = {"format": f.format, "bias": f.bias != "none", "domain": low.domain, "act": op.attrs["fn"], "out": rep}
    low.build.step(
        op.label, low.build.kernel("matmul_gated", attrs), [f.weight, f.x, target, f.bias],
        reads=[f.x], writes=[target], domain=low.domain, row_tile=f.row_tile, units=size // GROUP,
        ints=[f.groups, f.stride, low.build.stride(target), size],
    )  # fmt: skip


def lm_head(low: Lowering, op: GraphOp) -> None:
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


def _greedy_head(low: Lowering, op: GraphOp) -> None:
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


def _logits_stride(low: Lowering) -> int:
    return round_up(4 * round_up(low.view.info.vocab, GROUP), 64)
