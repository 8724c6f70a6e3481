"""Looking inside a native forward: run it step by step, read what a step left in its buffers."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from goinfer.bundle_format.errors import UsageError
from goinfer.gates.compare import F32

AfterStep = Callable[[Any, str, Mapping[str, Any]], None]


def run_by_step(
    engine: Any, ids: Sequence[int], after: AfterStep, before: AfterStep | None = None,
    started: Callable[[int], None] | None = None,
) -> None:  # fmt: skip
    """One forward of a prompt with all rows wanted; `before` and `after` see every step with its kernel's kind.

    `started` is told the slot. Raises UsageError for a prompt that the engine would cut into several forwards.
    """
    kernels = {k.symbol: (k.kind, k.attrs) for k in engine.plan.kernels}

    def execute(rows: int, hidden: Any) -> None:
        if rows != len(ids):
            raise UsageError(f"step by step: {len(ids)} tokens do not fit one forward of {rows}: take a shorter prompt")
        for i, step in enumerate(engine.plan.steps):
            kind, attrs = kernels[step.kernel.replace("{kv}", engine.kv)]
            if before is not None:
                before(step, kind, attrs)
            engine._range(i, i + 1)
            after(step, kind, attrs)

    engine._execute = execute
    try:
        with engine.new_slot() as slot:
            if started is not None:
                started(slot.index)
            engine.forward([(slot, ids)], wanted="all")
    finally:
        del engine._execute


def read_f32(engine: Any, operand: str, rows: int, width: int) -> F32:
    """The first `width` columns of an f32 operand's rows ("buf:name" or "io:logits")."""
    raw = _logits(engine, rows) if operand == "io:logits" else read_bytes(engine, operand, rows)
    return raw.view(np.float32)[:, :width].copy()


def read_bytes(engine: Any, operand: str, rows: int) -> np.ndarray:
    """A buffer's rows as they lie in memory, uint8 [rows, bytes of a row]."""
    name = operand.removeprefix("buf:")
    row_bytes = next(b.row_bytes for b in engine.plan.buffers if b.name == name)
    flat = engine.program.rows_of(name, 1, rows * row_bytes // 4).view(np.uint8)
    return np.ascontiguousarray(flat.reshape(rows, row_bytes))


def _logits(engine: Any, rows: int) -> np.ndarray:
    """The caller's logits, through the address that the steps are bound to."""
    i, at = next(
        (i, s.operands.index("io:logits")) for i, s in enumerate(engine.plan.steps) if "io:logits" in s.operands
    )
    stride = engine.program.logits_stride
    raw = (ctypes.c_uint8 * (rows * stride)).from_address(int(engine.program.steps["ptr"][i, at]))
    return np.frombuffer(raw, np.uint8).reshape(rows, stride)
