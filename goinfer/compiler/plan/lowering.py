"""State of one lowering, and what lowerings of several kinds of op need: where values lie, and in what form."""

from collections import defaultdict
from dataclasses import dataclass, field

from goinfer.compiler.graph import GraphOp, GraphView, Param
from goinfer.compiler.plan.builder import PlanBuilder

RESIDUAL, FINAL_NORM = "x", "final_norm"


@dataclass
class Lowering:
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
        """The parameter that an op has as operand `name`."""
        return self.view.params[op.operands[name]]

    def width(self, value: int) -> int:
        """Columns of a value."""
        return int(self.view.types[value].shape[-1] or 0)


def group_name(window: int) -> str:
    """The KV group of layers with a window (0: none)."""
    return f"window{window}" if window else "full"


def _wants_codes(low: Lowering, op: GraphOp) -> bool:
    """Whether an op reads its x as int8 activations."""
    if op.name not in ("linear", "lm_head"):
        return False
    role = "head" if op.name == "lm_head" else low.param(op, "weight").role
    return low.build.recipe.choose(role).activations == "int8"


def rep_for_users(low: Lowering, value: int) -> str:
    """q8 if every reader wants codes, else f32 (a reader that wants codes then gets a quantise step)."""
    readers = [u for u in low.users[value] if u.name != "hidden"]
    return "q8" if readers and all(_wants_codes(low, u) for u in readers) else "f32"


def declare(low: Lowering, value: int, label: str, rep: str) -> str:
    """Declare the buffer of a value."""
    operand = low.build.buffer(label, low.width(value), rep)
    (low.quantised if rep == "q8" else low.place)[value] = operand
    return operand


def codes_of(low: Lowering, value: int, label: str) -> str:
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
