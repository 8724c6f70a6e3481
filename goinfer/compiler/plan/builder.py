"""Collects what a lowering emits: steps with their accesses, values with their lifetimes, kernels, weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from goinfer.bundle_format.kernel_abi import GROUP, KV_DTYPES, f32_row_bytes, q8_row_bytes, round_up
from goinfer.bundle_format.plan import Buffer, Kernel, Step
from goinfer.codegen.errors import CompileError
from goinfer.compiler.checkpoints.ggml_grids import has_minimum, is_finer_than_four_bit
from goinfer.compiler.graph_view import Param
from goinfer.compiler.plan.arena import Lifetime, plan_arena
from goinfer.compiler.plan.barriers import Access, place_barriers
from goinfer.compiler.quant.formats import format_named
from goinfer.compiler.quant.recipes import Recipe

VECTOR = "vector"
"""Format name of a plain f32 vector, padded with zeros to a group."""


SourceTypes = Callable[[str], str]
"""The element type that the checkpoint keeps a tensor in, by the tensor's graph name."""


@dataclass(frozen=True)
class StoredParam:
    """A parameter and the format it is stored in."""

    param: Param
    format: str

    @property
    def nk(self) -> tuple[int, int]:
        """Rows and columns; a vector is one row."""
        shape = self.param.shape
        return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes in the weights section."""
        n, k = self.nk
        return 4 * round_up(k, GROUP) if self.format == VECTOR else format_named(self.format).nbytes(n, k)


@dataclass
class PlanBuilder:
    """Mutable state of one lowering. A buffer is "f32" or "q8" rows of some width, named after its value."""

    recipe: Recipe
    at_least_int8: tuple[str, ...] = ()
    sources: SourceTypes = lambda _: "F32"
    keeps_finer: bool = False
    steps: list[Step] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    stored: dict[str, StoredParam] = field(default_factory=dict)
    _widths: dict[str, tuple[int, int]] = field(default_factory=dict)
    _uses: dict[str, tuple[int, int]] = field(default_factory=dict)

    def buffer(self, name: str, width: int, rep: str) -> str:
        """Declare rows of a value and return the operand; a name is declared once."""
        if name in self._widths:
            raise CompileError(f"plan: buffer {name} is declared twice")
        row_bytes = f32_row_bytes(width) if rep == "f32" else q8_row_bytes(width)
        self._widths[name] = (width, row_bytes)
        return f"buf:{name}"

    def stride(self, operand: str) -> int:
        """Bytes between rows of a buffer operand."""
        return self._widths[operand.removeprefix("buf:")][1]

    def weight(self, param: Param, fmt: str | None = None) -> str:
        """The operand of a parameter, stored by the recipe's choice for its role unless it already is."""
        if param.name not in self.stored:
            if fmt is None:
                fmt = VECTOR if len(param.shape) == 1 else self._format(param)
            self.stored[param.name] = StoredParam(param, fmt)
        return f"weight:{param.name}"

    def _format(self, param: Param) -> str:
        """The recipe's format. Of its 4-bit choices some become int8, and some get a minimum as their source has."""
        fmt = self.recipe.choose(param.role).format
        if fmt != "int4":
            return fmt
        names = (param.name, *param.parts)
        types = [self.sources(part) for part in param.parts]
        lifted = any(fnmatchcase(name, pattern) for name in names for pattern in self.at_least_int8)
        if lifted or (self.keeps_finer and any(is_finer_than_four_bit(t) for t in types)):
            return "int8"
        return "int4min" if any(has_minimum(t) for t in types) else fmt

    def kernel(self, kind: str, attrs: dict[str, Any]) -> str:
        """Symbol of a kernel, `{kv}` left open when it depends on the KV precision (then all three are made)."""
        text = "_".join(str(int(v) if isinstance(v, bool) else v) for v in attrs.values())
        symbol = f"{kind}_{text}" if text else kind
        if "kv" not in attrs:
            self.kernels[symbol] = Kernel(symbol, kind, attrs)
            return symbol
        for dtype in KV_DTYPES:
            made = symbol.replace("{kv}", dtype)
            self.kernels[made] = Kernel(made, kind, {**attrs, "kv": dtype})
        return symbol

    def step(
        self,
        name: str,
        kernel: str,
        operands: list[str],
        *,
        reads: list[str],
        writes: list[str],
        ints: list[int | str] | None = None,
        floats: list[float] | None = None,
        domain: str = "rows",
        row_tile: int = 1,
        units: int = 1,
    ) -> int:
        """Append a step; `reads` and `writes` are operands (buffers or state). Returns its index."""
        index = len(self.steps)
        self.steps.append(
            Step(name, kernel, operands, ints or [], floats or [], domain, row_tile, units, barrier=False)
        )
        self.accesses.append(Access(_names(reads), _names(writes)))
        for buffer in _names([*reads, *writes]) & self._widths.keys():
            first, _ = self._uses.get(buffer, (index, index))
            self._uses[buffer] = (first, index)
        return index

    def finish(self, persistent: list[str]) -> tuple[list[Buffer], list[Step]]:
        """Arena and steps with barriers; persistent buffers are alive throughout."""
        last = len(self.steps) - 1
        values = {}
        for name, (_, row_bytes) in self._widths.items():
            first, final = self._uses.get(name, (0, 0))
            values[name] = Lifetime(row_bytes, first, last if name in persistent else final)
        buffers = plan_arena(values)
        return buffers, place_barriers(self.steps, self.accesses, buffers)


def _names(operands: list[str]) -> frozenset[str]:
    return frozenset(o.removeprefix("buf:") for o in operands)
