"""A thin kernel-writing language over MLIR's arith, math, scf, vector and llvm dialects.

`V` wraps an SSA value and gives it operators; types are written as ("f32", 8) for a vector and "f32" for a scalar.
Addresses are `Ptr`: a base plus byte offsets, as the kernel ABI has bare pointers. Nothing here knows a kernel or a
target; everything emits at MLIR's current insertion point.

Floating point is exact as written: no fast-math flags, `fma` only where the kernel says so, so that every tile shape
of a kernel rounds alike (the numerics contract).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from goinfer.codegen.mlir_context import load_mlir

load_mlir()
from mlir import ir  # noqa: E402
from mlir.dialects import arith, llvm, math, scf, vector  # noqa: E402

TypeSpec = str | tuple[str, int]
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "f32": 32, "f64": 64}
_DYNAMIC = -(2**31)


def ty(spec: TypeSpec) -> Any:
    """MLIR type of "i32", "ptr", or ("f32", lanes)."""
    if isinstance(spec, tuple):
        return ir.VectorType.get([spec[1]], ty(spec[0]))
    if spec == "ptr":
        return ir.Type.parse("!llvm.ptr")
    floats = {"f16": ir.F16Type, "f32": ir.F32Type, "f64": ir.F64Type}
    return floats[spec].get() if spec in floats else ir.IntegerType.get_signless(_BITS[spec])


class V:
    """An SSA value (scalar or vector of integers or floats) with operators; Python numbers are lifted to its type."""

    __slots__ = ("elem", "lanes", "v")

    def __init__(self, value: Any, elem: str, lanes: int = 0):
        self.v = value.result if hasattr(value, "result") else value
        self.elem = elem
        self.lanes = lanes

    @property
    def spec(self) -> TypeSpec:
        """The type as a TypeSpec."""
        return (self.elem, self.lanes) if self.lanes else self.elem

    @property
    def is_float(self) -> bool:
        """Whether the element type is a float."""
        return self.elem[0] == "f"

    def _lift(self, other: "V | int | float") -> "V":
        return other if isinstance(other, V) else const(other, self.spec)

    def _bin(self, other: "V | int | float", int_op: Any, float_op: Any, swap: bool = False) -> "V":
        a, b = self, self._lift(other)
        if a.spec != b.spec:
            raise TypeError(f"operands differ in type: {a.spec} and {b.spec}")
        if swap:
            a, b = b, a
        return V((float_op if self.is_float else int_op)(a.v, b.v), self.elem, self.lanes)

    def __add__(self, o: "V | int | float") -> "V":
        return self._bin(o, arith.addi, arith.addf)

    __radd__ = __add__

    def __sub__(self, o: "V | int | float") -> "V":
        return self._bin(o, arith.subi, arith.subf)

    def __rsub__(self, o: "V | int | float") -> "V":
        return self._bin(o, arith.subi, arith.subf, swap=True)

    def __mul__(self, o: "V | int | float") -> "V":
        return self._bin(o, arith.muli, arith.mulf)

    __rmul__ = __mul__

    def __truediv__(self, o: "V | int | float") -> "V":
        return self._bin(o, None, arith.divf)

    def __rtruediv__(self, o: "V | int | float") -> "V":
        return self._bin(o, None, arith.divf, swap=True)

    def __floordiv__(self, o: "V | int") -> "V":
        return self._bin(o, arith.divsi, None)

    def __mod__(self, o: "V | int") -> "V":
        return self._bin(o, arith.remsi, None)

    def __and__(self, o: "V | int") -> "V":
        return self._bin(o, arith.andi, None)

    def __or__(self, o: "V | int") -> "V":
        return self._bin(o, arith.ori, None)

    def __xor__(self, o: "V | int") -> "V":
        return self._bin(o, arith.xori, None)

    def __lshift__(self, o: "V | int") -> "V":
        return self._bin(o, arith.shli, None)

    def __rshift__(self, o: "V | int") -> "V":
        """Logical shift right; see `ashr` for the arithmetic one."""
        return self._bin(o, arith.shrui, None)

    def ashr(self, o: "V | int") -> "V":
        """Arithmetic shift right."""
        return self._bin(o, arith.shrsi, None)

    def __neg__(self) -> "V":
        return V(arith.negf(self.v), self.elem, self.lanes) if self.is_float else 0 - self

    def _cmp(self, o: "V | int | float", int_pred: str, float_pred: str) -> "V":
        other = self._lift(o)
        if self.is_float:
            value = arith.cmpf(getattr(arith.CmpFPredicate, float_pred), self.v, other.v)
        else:
            value = arith.cmpi(getattr(arith.CmpIPredicate, int_pred), self.v, other.v)
        return V(value, "i1", self.lanes)

    def __lt__(self, o: "V | int | float") -> "V":
        return self._cmp(o, "slt", "OLT")

    def __le__(self, o: "V | int | float") -> "V":
        return self._cmp(o, "sle", "OLE")

    def __gt__(self, o: "V | int | float") -> "V":
        return self._cmp(o, "sgt", "OGT")

    def __ge__(self, o: "V | int | float") -> "V":
        return self._cmp(o, "sge", "OGE")

    def eq(self, o: "V | int | float") -> "V":
        """Ordered equality (not `==`: values are hashed by identity)."""
        return self._cmp(o, "eq", "OEQ")

    def ne(self, o: "V | int | float") -> "V":
        """Inequality; true for NaN."""
        return self._cmp(o, "ne", "UNE")


def const(x: int | float, spec: TypeSpec) -> V:
    """A constant; a vector type gives a splat."""
    elem, lanes = spec if isinstance(spec, tuple) else (spec, 0)
    attr = ir.FloatAttr.get(ty(elem), float(x)) if elem[0] == "f" else ir.IntegerAttr.get(ty(elem), int(x))
    if not lanes:
        return V(arith.constant(ty(elem), attr), elem)
    return V(arith.constant(ty(spec), ir.DenseElementsAttr.get_splat(ty(spec), attr)), elem, lanes)


def i32(x: int) -> V:
    """An i32 constant."""
    return const(x, "i32")


def i64(x: int) -> V:
    """An i64 constant."""
    return const(x, "i64")


def f32(x: float) -> V:
    """An f32 constant."""
    return const(x, "f32")


def vector_const(values: Sequence[int | float], elem: str) -> V:
    """A vector constant from its elements."""
    make = (lambda x: ir.FloatAttr.get(ty(elem), float(x))) if elem[0] == "f" else (
        lambda x: ir.IntegerAttr.get(ty(elem), int(x))
    )
    spec = (elem, len(values))
    attr = ir.DenseElementsAttr.get([make(x) for x in values], ty(spec))
    return V(arith.constant(ty(spec), attr), elem, len(values))


def splat(x: V, lanes: int) -> V:
    """Broadcast a scalar to a vector."""
    return V(vector.broadcast(ty((x.elem, lanes)), x.v), x.elem, lanes)


def fma(a: V, b: V, c: V) -> V:
    """a*b + c with one rounding."""
    return V(math.fma(a.v, b.v, c.v), a.elem, a.lanes)


def select(c: V, a: V, b: V) -> V:
    """Where c then a else b."""
    return V(arith.select(c.v, a.v, b.v), a.elem, a.lanes)


def choose(c: V, a: "Ptr", b: "Ptr") -> "Ptr":
    """Pointer a where c holds, else b."""
    return Ptr(arith.select(c.v, a.v, b.v))


def maximum(a: V, b: V) -> V:
    """Larger of two; for floats NaN in either gives NaN (so that a NaN is never hidden)."""
    return V((arith.maximumf if a.is_float else arith.maxsi)(a.v, b.v), a.elem, a.lanes)


def minimum(a: V, b: V) -> V:
    """Smaller of two; for floats NaN in either gives NaN."""
    return V((arith.minimumf if a.is_float else arith.minsi)(a.v, b.v), a.elem, a.lanes)


def fmax_fast(a: V, b: V) -> V:
    """Larger of two by one compare and select, `a > b ? a : b`: a NaN in a yields b. One instruction on x86."""
    return select(a > b, a, b)


def abs_(a: V) -> V:
    """Absolute value."""
    return V((math.absf if a.is_float else math.absi)(a.v), a.elem, a.lanes)


def round_even(a: V) -> V:
    """Round to the nearest integer, ties to even, as a float."""
    return V(math.roundeven(a.v), a.elem, a.lanes)


def sqrt(a: V) -> V:
    """Correctly rounded square root."""
    return V(math.sqrt(a.v), a.elem, a.lanes)


def convert(a: V, elem: str) -> V:
    """Signed numeric conversion between element types (float to int truncates; f32 to f16 rounds to even)."""
    spec = (elem, a.lanes) if a.lanes else elem
    if a.is_float and elem[0] == "f":
        op = arith.extf if _BITS[elem] > _BITS[a.elem] else arith.truncf
    elif a.is_float:
        op = arith.fptosi
    elif elem[0] == "f":
        op = arith.sitofp
    else:
        op = arith.extsi if _BITS[elem] > _BITS[a.elem] else arith.trunci
    return V(op(ty(spec), a.v), elem, a.lanes)


def zext(a: V, elem: str) -> V:
    """Zero-extend an integer."""
    return V(arith.extui(ty((elem, a.lanes) if a.lanes else elem), a.v), elem, a.lanes)


def bitcast(a: V, spec: TypeSpec) -> V:
    """Reinterpret bits; the total width must match."""
    elem, lanes = spec if isinstance(spec, tuple) else (spec, 0)
    return V(llvm.bitcast(ty(spec), a.v), elem, lanes)


def extract(a: V, i: int | V) -> V:
    """One lane as a scalar."""
    index = i if isinstance(i, V) else i32(i)
    return V(llvm.extractelement(a.v, index.v), a.elem)


def insert(a: V, x: V, i: int) -> V:
    """The vector with lane i replaced."""
    return V(llvm.insertelement(a.v, x.v, i32(i).v), a.elem, a.lanes)


def shuffle(a: V, b: V, lanes: Sequence[int]) -> V:
    """Lanes of a (0..n-1) and b (n..2n-1) in the given order."""
    return V(vector.shuffle(a.v, b.v, list(lanes)), a.elem, len(lanes))


def reduce_tree(a: V, op: Callable[[V, V], V]) -> V:
    """Fold a vector to a scalar by halves: a fixed order, so equal inputs give equal bits."""
    while a.lanes > 1:
        half = a.lanes // 2
        low, high = shuffle(a, a, range(half)), shuffle(a, a, range(half, a.lanes))
        a = op(low, high)
    return extract(a, 0)


def intrinsic(name: str, result: TypeSpec | None, *args: V) -> V:
    """Call an LLVM intrinsic by name."""
    out = llvm.call_intrinsic(
        None if result is None else ty(result), name, [a.v for a in args], [], ir.DenseI32ArrayAttr.get([])
    )
    elem, lanes = result if isinstance(result, tuple) else (result or "i1", 0)
    return V(out, elem, lanes) if result is not None else V(None, "i1")


CACHE_LINE = 64
"""Bytes that one prefetch brings."""


def prefetch(at: "Ptr") -> None:
    """Ask for the cache line at an address, into every level; any address is harmless."""
    llvm.call_intrinsic(
        None, "llvm.prefetch.p0", [at.v, i32(0).v, i32(3).v, i32(1).v], [], ir.DenseI32ArrayAttr.get([])
    )


def in_step(values: Sequence[V]) -> list[V]:
    """The same values; what made them comes before and what uses them after this point in the machine code.

    Vectors of equal type. An empty piece of assembly passes them all through registers: LLVM's scheduler, which would
    finish one sum after the other and keep the rest in memory meanwhile, cannot move anything across.
    """
    register = "v" if values[0].lanes * _BITS[values[0].elem] > 128 else "w"
    constraints = ",".join([f"={register}"] * len(values) + [str(i) for i in range(len(values))])
    types = [ty(v.spec) for v in values]
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(str(t) for t in types)})>")
    out = llvm.inline_asm(struct, [v.v for v in values], "", constraints, has_side_effects=False)
    parts = [llvm.extractvalue(t, out, [i]) for i, t in enumerate(types)]
    return [V(part, v.elem, v.lanes) for part, v in zip(parts, values, strict=True)]


class Ptr:
    """A bare pointer; `p + n` advances by n bytes."""

    __slots__ = ("v",)

    def __init__(self, value: Any):
        self.v = value.result if hasattr(value, "result") else value

    def __add__(self, offset: V | int) -> "Ptr":
        if isinstance(offset, int):
            if offset == 0:
                return self
            return Ptr(llvm.getelementptr(ty("ptr"), self.v, [], [offset], ty("i8"), 0))
        return Ptr(llvm.getelementptr(ty("ptr"), self.v, [offset.v], [_DYNAMIC], ty("i8"), 0))

    def load(self, spec: TypeSpec, align: int = 1) -> V:
        """Load a value; `align` in bytes is a promise about the address."""
        elem, lanes = spec if isinstance(spec, tuple) else (spec, 0)
        return V(llvm.load(ty(spec), self.v, alignment=align), elem, lanes)

    def load_ptr(self) -> "Ptr":
        """Load a pointer."""
        return Ptr(llvm.load(ty("ptr"), self.v, alignment=8))

    def store(self, value: "V | Ptr", align: int = 1) -> None:
        """Store a value or a pointer."""
        llvm.store(value.v, self.v, alignment=align)

    def address(self) -> V:
        """The address as i64."""
        return V(llvm.ptrtoint(ty("i64"), self.v), "i64")


def scratch(nbytes: int) -> Ptr:
    """Uninitialised stack memory of the function, 64-byte aligned; call it outside every loop."""
    op = llvm.AllocaOp(ty("ptr"), i64(nbytes).v, ty("i8"), alignment=64)
    return Ptr(op.res)


def pointer(address: V) -> Ptr:
    """An i64 address as a pointer."""
    return Ptr(llvm.inttoptr(ty("ptr"), address.v))


class Loop:
    """Result of `for_`: the induction variable, the carried values, and after the block the final values."""

    def __init__(self, op: Any, specs: list[TypeSpec]):
        self._op = op
        self._specs = specs
        self._done = False

    def _wrap(self, values: Any) -> list[V]:
        return [
            V(x, *(s if isinstance(s, tuple) else (s, 0))) for x, s in zip(values, self._specs, strict=True)
        ]

    @property
    def iv(self) -> V:
        """The induction variable, i64."""
        return V(self._op.induction_variable, "i64")

    @property
    def args(self) -> list[V]:
        """The carried values at the start of an iteration."""
        return self._wrap(self._op.inner_iter_args)

    def next(self, *values: V) -> None:
        """End the iteration, handing the carried values on."""
        scf.YieldOp([x.v for x in values])
        self._done = True

    @property
    def results(self) -> list[V]:
        """The carried values after the last iteration."""
        return self._wrap(self._op.results)


@contextmanager
def for_(lo: V | int, hi: V | int, step: V | int = 1, carry: Sequence[V] = ()) -> Iterator[Loop]:
    """A counted loop over i64; call `loop.next(...)` at its end when values are carried."""
    bounds = [x if isinstance(x, V) else i64(x) for x in (lo, hi, step)]
    op = scf.ForOp(*[b.v for b in bounds], [c.v for c in carry])
    loop = Loop(op, [c.spec for c in carry])
    with ir.InsertionPoint(op.body):
        yield loop
        if not loop._done:
            scf.YieldOp([])


@contextmanager
def if_(cond: V) -> Iterator[None]:
    """Run the block where cond holds; no results."""
    op = scf.IfOp(cond.v)
    with ir.InsertionPoint(op.then_block):
        yield
        scf.YieldOp([])


def if_else(cond: V, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Two-way branch without results."""
    op = scf.IfOp(cond.v, has_else=True)
    with ir.InsertionPoint(op.then_block):
        then()
        scf.YieldOp([])
    with ir.InsertionPoint(op.else_block):
        otherwise()
        scf.YieldOp([])


def while_(init: Sequence[V], cond: Callable[..., V], body: Callable[..., Sequence[V]]) -> list[V]:
    """Loop while cond(values) holds; body returns the next values."""
    types = [ty(x.spec) for x in init]
    specs = [x.spec if isinstance(x.spec, tuple) else (x.spec, 0) for x in init]
    op = scf.WhileOp(types, [x.v for x in init])
    before = op.before.blocks.append(*types)
    after = op.after.blocks.append(*types)
    with ir.InsertionPoint(before):
        values = [V(a, *s) for a, s in zip(before.arguments, specs, strict=True)]
        scf.ConditionOp(cond(*values).v, [x.v for x in values])
    with ir.InsertionPoint(after):
        values = [V(a, *s) for a, s in zip(after.arguments, specs, strict=True)]
        scf.YieldOp([x.v for x in body(*values)])
    return [V(r, *s) for r, s in zip(op.results, specs, strict=True)]


def call(address: V, args: Sequence[V | Ptr], result: str | None = None) -> V:
    """Call a C function by address."""
    op = ir.Operation.create(
        "llvm.call",
        results=[ty(result)] if result else [],
        operands=[pointer(address).v, *[a.v for a in args]],
        attributes={
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1 + len(args), 0]),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
        },
    )
    return V(op.results[0], result) if result else V(None, "i1")


def atomic_add(p: Ptr, value: V, ordering: str = "acq_rel") -> V:
    """Fetch-and-add; returns the old value."""
    order = getattr(llvm.AtomicOrdering, ordering)
    return V(llvm.atomicrmw(llvm.AtomicBinOp.add, p.v, value.v, order), value.elem)


def atomic_load(p: Ptr, spec: str) -> V:
    """Acquire load."""
    value = llvm.load(ty(spec), p.v, alignment=8, ordering=llvm.AtomicOrdering.acquire)
    return V(value, spec)


def atomic_store(p: Ptr, value: V) -> None:
    """Release store."""
    llvm.store(value.v, p.v, alignment=8, ordering=llvm.AtomicOrdering.release)


def atomic_swap_if(p: Ptr, expected: V, value: V) -> tuple[V, V]:
    """Compare and swap: store `value` if the word is `expected`. Returns the word found, and whether it was stored."""
    order = llvm.AtomicOrdering.monotonic
    pair = llvm.cmpxchg(p.v, expected.v, value.v, order, order)
    found, stored = (llvm.extractvalue(ty(spec), pair, [i]) for i, spec in enumerate((expected.spec, "i1")))
    return V(found, expected.elem), V(stored, "i1")
