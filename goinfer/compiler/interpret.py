"""The reference executor: runs a graph op by op in numpy, exactly as it stands (before or after the passes).

This is what "the source checkpoint" means in a gate, and what names a bad layer: every result can be observed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goinfer.compiler.graph_view import GraphOp, GraphView, Param
from goinfer.compiler.ops import OPS, GraphError
from goinfer.compiler.reference import F32, State, Weight

# read(source tensor name, start, stop) -> float32 rows start..stop; as Weights.read of tensor_map.py.
ReadRows = Callable[[str, int, int], F32]
Observe = Callable[[GraphOp, tuple[F32, ...]], None]


@dataclass(frozen=True)
class Trace:
    """What a run gives: logits [n, vocab]; hidden [n_layers + 2, n, hidden] (embedding, layers, final norm)."""

    logits: F32
    hidden: F32


def run(view: GraphView, ids: Sequence[int], read: ReadRows, observe: Observe | None = None) -> Trace:
    """Run one sequence from position 0 through the graph.

    `observe` sees every op with its results (by `op.label`, which survives the passes where the value does).
    Peak memory: the live activations and one band of a weight. Raises GraphError for an id outside the
    vocabulary or a graph without logits.
    """
    state = State(_check_ids(ids, view.info.vocab), view.ropes)
    values: dict[int, Any] = {vid: _weight(param, read) for vid, param in view.params.items()}
    last_use = {vid: i for i, op in enumerate(view.ops) for vid in op.operands.values()}
    for index, op in enumerate(view.ops):
        results = _execute(op, state, values)
        values.update(zip(op.results, results, strict=True))
        if observe is not None:
            observe(op, results)
        for vid in op.operands.values():
            if last_use[vid] == index and vid not in view.params:
                values.pop(vid, None)
    if state.logits is None:
        raise GraphError("graph: it has no output op, so it gives no logits")
    return Trace(state.logits, np.stack([state.hidden[i] for i in sorted(state.hidden)]))


def _execute(op: GraphOp, state: State, values: dict[int, Any]) -> tuple[F32, ...]:
    reference = OPS[op.name].reference
    if reference is None:
        raise GraphError(f"{op.name} {op.label}: the op has no reference")
    out = reference(state, op.attrs, **{name: values[vid] for name, vid in op.operands.items()})
    if out is None:
        return ()
    return out if isinstance(out, tuple) else (out,)


def _check_ids(ids: Sequence[int], vocab: int) -> NDArray[np.int64]:
    array = np.asarray(ids, np.int64)
    outside = array[(array < 0) | (array >= vocab)]
    if array.ndim != 1 or not array.size or outside.size:
        what = f"token id {outside[0]} is outside the vocabulary of {vocab}" if outside.size else "no token ids"
        raise GraphError(f"run: {what}")
    return array


def _weight(param: Param, read: ReadRows) -> Weight:
    """A handle over the parameter's parts as one run of rows."""
    ends = np.cumsum(param.rows)

    def read_rows(start: int, stop: int) -> F32:
        bands = []
        for part, end, rows in zip(param.parts, ends, param.rows, strict=True):
            first = int(end) - rows
            low, high = max(start, first), min(stop, int(end))
            if low < high:
                bands.append(read(part, low - first, high - first))
        return bands[0] if len(bands) == 1 else np.concatenate(bands)

    return Weight(param.shape, read_rows)
