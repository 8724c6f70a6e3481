"""The gated activation of an MLP: out = act(gate) * up, and activations without a gate.

Static attributes: act (a name in ACTIVATIONS), out ("f32" or "q8"), gated.
Operands: 0 f32 rows [gate I | up I], or [I] where not gated, 1 out rows. Ints: 0 I, 1 x stride, 2 out stride (bytes),
3 columns that a unit covers (a multiple of 32). Tile t is unit t % units of row t // units.
Columns from I to the padded width are written as zeros.
"""

import math
from collections.abc import Callable, Sequence

from goinfer.codegen import vecmath
from goinfer.codegen.dsl import V, const, select
from goinfer.codegen.errors import CompileError
from goinfer.codegen.kernel import Frame, kernel
from goinfer.codegen.quantise_rows import Group, row_sink
from goinfer.codegen.row_walk import Span, for_units, row_source, second_half, stage_for_second_half, walk

_SQRT_8_OVER_PI = 1.5957691216057308
_SQRT_HALF = 0.7071067811865476


def _silu(x: V) -> V:
    return x / (vecmath.exp(-x) + 1.0)


def _gelu_tanh(x: V) -> V:
    """0.5 x (1 + tanh u) is x / (1 + e^-2u), which loses no digits where tanh is near -1."""
    twice = x * ((x * x) * (0.044715 * _SQRT_8_OVER_PI) + _SQRT_8_OVER_PI)
    return x / (vecmath.exp(-twice) + 1.0)


def _gelu_erf(x: V) -> V:
    return x * 0.5 * (vecmath.erf(x * _SQRT_HALF) + 1.0)


def _relu(x: V) -> V:
    """max(x, 0), NaN kept."""
    zero = const(0.0, x.spec)
    return select(zero > x, zero, x)


def _relu2(x: V) -> V:
    return _relu(x) * _relu(x)


ACTIVATIONS: dict[str, Callable[[V], V]] = {
    "silu": _silu, "gelu_tanh": _gelu_tanh, "gelu_erf": _gelu_erf, "relu": _relu, "relu2": _relu2,
    "sigmoid": vecmath.sigmoid, "tanh": vecmath.tanh, "softplus": vecmath.softplus, "identity": lambda x: x,
}  # fmt: skip
"""Activations by the name the graph gives them."""

def activation(name: str) -> Callable[[V], V]:
    """The activation of a name; raises CompileError listing the known ones."""
    if name not in ACTIVATIONS:
        raise CompileError(f"activation {name!r} has no kernel; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


_ZERO_AT = {"sigmoid": -math.inf, "softplus": -math.inf}
"""Where an activation that is not 0 at 0 is 0: what columns past I are filled with, so that they come out as 0."""


@kernel("gate_act")
def build(frame: Frame) -> None:
    """Emit the loop over tiles; see the module docstring for attributes and operands."""
    name, gated = frame.attrs["act"], frame.attrs["gated"]
    act, size = activation(name), frame.int(0)
    fill = 0.0 if gated else _ZERO_AT.get(name, 0.0)
    stage = stage_for_second_half()

    def unit(row: V, span: Span) -> None:
        x = frame.ptr(0) + row * frame.int(1)
        sources = [row_source(x)]
        if gated:
            sources.append(second_half(frame.target, stage, x, size))
        sink = row_sink(frame.attrs["out"], frame.ptr(1) + row * frame.int(2))

        def group(at: V, values: list[Group], carried: list[V]) -> Sequence[V]:
            sink(at, _finished(act, values))
            return ()

        walk(frame.target, sources, span, group, fill=fill)

    for_units(frame, frame.int(3), size, unit)


def _finished(act: Callable[[V], V], values: list[Group]) -> Group:
    done = [act(v) for v in values[0]]
    return [d * u for d, u in zip(done, values[1], strict=True)] if len(values) == 2 else done
