"""Arena and barriers on random programs: nothing alive overlaps, every dependent pair is separated, none is spare.

Seen red with: the overlap test in the arena ignoring the last step of a lifetime; barriers comparing names only (two
buffers that share memory were not kept apart).
"""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from goinfer.bundle_format.plan import Step
from goinfer.compiler.plan.arena import Lifetime, plan_arena
from goinfer.compiler.plan.barriers import Access, place_barriers

LIVES = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.tuples(st.integers(1, 40), st.integers(0, 30), st.integers(0, 30)).map(
        lambda t: Lifetime(64 * t[0], min(t[1:]), max(t[1:]))
    ),
    max_size=14,
)


@given(LIVES)
@settings(max_examples=200, deadline=None)
def test_values_alive_together_are_disjoint(lives: dict[str, Lifetime]) -> None:
    buffers = {b.name: b for b in plan_arena(lives)}
    assert buffers.keys() == lives.keys()
    for a, x in lives.items():
        assert buffers[a].row_bytes == x.row_bytes and buffers[a].row_offset % 64 == 0
        for b, y in lives.items():
            if a < b and x.first <= y.last and y.first <= x.last:
                first, second = sorted((buffers[a], buffers[b]), key=lambda q: q.row_offset)
                assert first.row_offset + first.row_bytes <= second.row_offset, (a, b)


def test_values_that_never_meet_share_memory() -> None:
    lives = {f"v{i}": Lifetime(640, 2 * i, 2 * i + 1) for i in range(10)}
    assert {b.row_offset for b in plan_arena(lives)} == {0}


def step(name: str) -> Step:
    return Step(name, "k", [], [], [], "rows", 1, 1, barrier=False)


PROGRAMS = st.lists(
    st.tuples(st.frozensets(st.sampled_from("abcde"), max_size=2), st.frozensets(st.sampled_from("abcde"), max_size=2)),
    min_size=1,
    max_size=20,
)


def conflict(a: Access, b: Access, shared: set[frozenset[str]]) -> bool:
    def meet(x: frozenset[str], y: frozenset[str]) -> bool:
        return any(p == q or frozenset((p, q)) in shared for p in x for q in y)

    return meet(a.writes, b.reads) or meet(a.writes, b.writes) or meet(a.reads, b.writes)


@given(PROGRAMS)
@settings(max_examples=200, deadline=None)
def test_dependent_steps_are_separated_and_no_barrier_is_spare(
    program: list[tuple[frozenset[str], frozenset[str]]],
) -> None:
    """a and b share memory in this arena; the other values have their own."""
    lives = {"a": Lifetime(64, 0, 0), "b": Lifetime(64, 1, 1), "c": Lifetime(128, 0, 9), "d": Lifetime(128, 0, 9),
             "e": Lifetime(128, 0, 9)}  # fmt: skip
    buffers = plan_arena(lives)
    accesses = [Access(r, w) for r, w in program]
    placed = place_barriers([step(str(i)) for i in range(len(program))], accesses, buffers)
    shared = {frozenset("ab")}
    edges = [0, *(i + 1 for i, s in enumerate(placed) if s.barrier), len(placed)]
    for begin, end in pairwise(edges):
        for i in range(begin, end):
            for j in range(i + 1, end):
                assert not conflict(accesses[i], accesses[j], shared), (i, j)
    for cut, after in zip(edges[1:-1], edges, strict=False):
        assert any(conflict(accesses[i], accesses[cut], shared) for i in range(after, cut)), "a barrier without cause"
