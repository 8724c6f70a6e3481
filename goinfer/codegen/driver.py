"""The native loop: `goinfer_forward` and `goinfer_worker`, generated like any kernel so an image needs no C runtime.

All threads walk the step table. A step's tiles are claimed in runs from an atomic counter, and where the plan asks for
a barrier a thread waits until every tile so far is done: for the work, not for the other threads. So a thread whose
core another process holds stalls nobody unless it holds tiles itself; it finds the work done when it returns. Waiting
spins for a bounded time and then yields the core. Between forwards workers sleep on a semaphore.

A forward may end while such a thread is still on its way, even asleep. Each forward therefore has a generation, a
multiple of 2^32 that its counters start from, and when it ends its counters move on to the next one with nothing to
claim: from then on, whatever the caller writes into the records for the next forward, a straggler's claim compares and
swaps against a counter of another generation, fails, and the straggler leaves.
"""

from typing import Any

from goinfer.bundle_format import kernel_abi as abi
from goinfer.codegen.dsl import (
    Ptr,
    V,
    atomic_add,
    atomic_load,
    atomic_store,
    atomic_swap_if,
    call,
    for_,
    i32,
    i64,
    if_,
    intrinsic,
    maximum,
    minimum,
    pointer,
    select,
    while_,
)
from goinfer.codegen.kernel import define_function
from goinfer.codegen.target import Target

_CLAIMS_PER_THREAD = 6
"""Runs of tiles a thread claims in an even step: small enough to balance, large enough to stream."""

_GENERATION = 1 << 32
"""More than the tiles of any forward."""


def _field(record: Ptr, dtype: Any, name: str) -> Ptr:
    return record + int(dtype.fields[name][1])


def _ctx(ctx: Ptr, name: str, spec: str = "i64") -> V:
    return _field(ctx, abi.CTX, name).load(spec, 8)


def define_driver(module: Any, target: Target) -> None:
    """Add goinfer_forward, goinfer_worker and their shared step loop to an MLIR module."""
    define_function(module, "goinfer_steps", ("ptr", "i32"), lambda ctx, thread: _steps(target, ctx, thread))
    define_function(module, abi.FORWARD_SYMBOL, ("ptr",), _forward)
    define_function(module, abi.WORKER_SYMBOL, ("ptr", "i32"), _worker)


def _run_steps(ctx: Ptr, thread: V) -> None:
    from mlir.dialects import func

    func.CallOp([], "goinfer_steps", [ctx.v, thread.v])


def _forward(ctx: Ptr) -> None:
    """Open a generation, wake the workers, take part, and close it when every tile is done."""
    _begin_generation(ctx, finished=i64(0))
    semaphores = _field(ctx, abi.CTX, "semaphores").load_ptr()
    with for_(1, _ctx(ctx, "threads")) as loop:
        call(_ctx(ctx, "sem_post"), [semaphores + loop.iv * abi.SEMAPHORE_BYTES], "i32")
    _run_steps(ctx, i32(0))
    _begin_generation(ctx, finished=i64(_GENERATION - 1))


def _begin_generation(ctx: Ptr, finished: V) -> None:
    """Move the counters of the forward's steps to the next generation, with `finished` tiles claimed and done."""
    generation = _field(ctx, abi.CTX, "generation")
    base = atomic_load(generation, "i64") + _GENERATION
    counters = _field(ctx, abi.CTX, "counters").load_ptr()
    with for_(_ctx(ctx, "step_begin"), _ctx(ctx, "step_end")) as loop:
        atomic_store(counters + loop.iv * 8, base + finished)
    atomic_store(_field(ctx, abi.CTX, "done"), finished)
    atomic_store(generation, base)


def _worker(ctx: Ptr, thread: V) -> None:
    """Sleep, take part in a forward, repeat until `quit`. sem_wait may return early on a signal: wait again."""
    from goinfer.codegen.dsl import convert

    own = _field(ctx, abi.CTX, "semaphores").load_ptr() + convert(thread, "i64") * abi.SEMAPHORE_BYTES

    def wait(_: V) -> list[V]:
        while_([i32(1)], lambda x: x.ne(0), lambda _x: [call(_ctx(ctx, "sem_wait"), [own], "i32")])
        running = atomic_load(_field(ctx, abi.CTX, "quit"), "i64").eq(0)
        with if_(running):
            _run_steps(ctx, thread)
        return [select(running, i64(1), i64(0))]

    while_([i64(1)], lambda go: go.ne(0), wait)


def _steps(target: Target, ctx: Ptr, thread: V) -> None:
    """Walk the step table; see the module docstring. `due` counts the tiles so far, `own` those not yet reported."""
    base = atomic_load(_field(ctx, abi.CTX, "generation"), "i64")
    table = _field(ctx, abi.CTX, "steps").load_ptr()
    counters = _field(ctx, abi.CTX, "counters").load_ptr()
    threads = _ctx(ctx, "threads")
    end = _ctx(ctx, "step_end")
    profile = select(thread.eq(0), _ctx(ctx, "profile"), i64(0))
    with for_(_ctx(ctx, "step_begin"), end, carry=[i64(0), i64(0)]) as loop:
        due, own = loop.args
        step = table + loop.iv * abi.STEP.itemsize
        started = _clock_if(profile)
        tiles = _tile_count(ctx, step)
        due = due + tiles
        own = own + _claim_tiles(ctx, step, counters + loop.iv * 8, base, tiles, thread)
        last = (loop.iv + 1).eq(end)
        wanted = _field(step, abi.STEP, "barrier").load("i32", 4).ne(0)
        barrier = (last | wanted) & (threads > 1)
        worked = _clock_if(profile)
        with if_(barrier):
            _report(ctx, own)
            _wait(target, ctx, base, due)
        _count_ticks(profile, loop.iv, started, worked)
        loop.next(due, select(barrier, i64(0), own))


def _claim_tiles(ctx: Ptr, step: Ptr, counter: Ptr, base: V, tiles: V, thread: V) -> V:
    """Work on runs of tiles while there are any; the number of tiles done."""
    threads = _ctx(ctx, "threads")
    entry = _field(step, abi.STEP, "fn").load("i64", 8)
    # Alone there is one run, which no counter has to give out.
    run = select(threads.eq(1), tiles, maximum(tiles // (threads * _CLAIMS_PER_THREAD), i64(1)))

    def body(seen: V, done: V) -> list[V]:
        start = seen - base
        stop = minimum(start + run, tiles)
        now, ours = atomic_swap_if(counter, seen, seen + run)
        with if_(ours):
            call(entry, [step, ctx, thread, start, stop])
        return [select(ours, seen + run, now), done + select(ours, stop - start, i64(0))]

    def claimable(seen: V, _: V) -> V:
        """False too for a counter of another generation, which lies below 0 or far above every tile."""
        return (seen - base >= 0) & (seen - base < tiles)

    return while_([atomic_load(counter, "i64"), i64(0)], claimable, body)[1]


def _tile_count(ctx: Ptr, step: Ptr) -> V:
    """units * ceil(count of the step's domain / row_tile)."""
    from goinfer.codegen.dsl import convert

    domain = convert(_field(step, abi.STEP, "domain").load("i32", 4), "i64")
    row_tile = convert(_field(step, abi.STEP, "row_tile").load("i32", 4), "i64")
    count = (_field(ctx, abi.CTX, "counts") + domain * 8).load("i64", 8)
    return _field(step, abi.STEP, "units").load("i64", 8) * ((count + row_tile - 1) // row_tile)


def _report(ctx: Ptr, own: V) -> None:
    """Publish the thread's tiles; their results are visible to whoever sees the count."""
    with if_(own > 0):
        atomic_add(_field(ctx, abi.CTX, "done"), own)


def _wait(target: Target, ctx: Ptr, base: V, due: V) -> None:
    """Until `due` tiles are done, or the forward is over."""
    limit = _ctx(ctx, "spin_limit")
    done, generation = _field(ctx, abi.CTX, "done"), _field(ctx, abi.CTX, "generation")

    def unfinished(_: V) -> V:
        return (atomic_load(done, "i64") < due) & atomic_load(generation, "i64").eq(base)

    def spin(turns: V) -> list[V]:
        _pause(target)
        with if_(turns > limit):
            call(_ctx(ctx, "sched_yield"), [], "i32")
        return [turns + 1]

    while_([i64(0)], unfinished, spin)


def _pause(target: Target) -> None:
    """Tell the core that this is a spin loop."""
    if target.arch == "x86_64":
        intrinsic("llvm.x86.sse2.pause", None)
    else:
        intrinsic("llvm.aarch64.hint", None, i32(1))


def clock() -> V:
    """Ticks of the processor's counter; LLVM makes it 0 on aarch64, whose counter programs may not read."""
    return intrinsic("llvm.readcyclecounter", "i64")


def _count_ticks(profile: V, index: V, started: V, worked: V) -> None:
    """Add a step's ticks, and those of them after `worked`, to its two counters; profile 0 means that it is off."""
    with if_(profile.ne(0)):
        slot = pointer(profile) + index * abi.PROFILE.itemsize
        now = clock()
        for name, since in (("ticks", started), ("waiting", worked)):
            counter = _field(slot, abi.PROFILE, name)
            counter.store(counter.load("i64", 8) + (now - since), 8)


def _clock_if(profile: V) -> V:
    """The clock, 0 where profiling is off."""
    from goinfer.codegen.dsl import ir, scf, ty

    op = scf.IfOp(profile.ne(0).v, [ty("i64")], has_else=True)
    with ir.InsertionPoint(op.then_block):
        scf.YieldOp([clock().v])
    with ir.InsertionPoint(op.else_block):
        scf.YieldOp([i64(0).v])
    return V(op.results[0], "i64")
