"""Wanted rows move to the front of their buffer, in place.

Seen red with: a copy of one vector too few; row i copied to row wanted[i].
"""

import numpy as np
import pytest

from tests.kernels.harness import RUNNABLE, Call, aligned, place, run


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("wanted", [[0, 1, 2, 3], [3], [0, 2], [1, 2, 3], []])
def test_rows_move_to_the_front(target: str, wanted: list[int]) -> None:
    rows = aligned((4, 192), np.uint8)
    rows[:] = np.random.default_rng(0).integers(0, 256, rows.shape)
    before = rows.copy()
    listed = place(np.array([*wanted, -1], np.int32))
    run(Call("keep_rows", {}, [rows, listed], [192], rows=4, wanted=len(wanted), domain="fixed"), target)
    assert rows[: len(wanted)].tobytes() == before[wanted].tobytes()
    assert rows[len(wanted) :].tobytes() == before[len(wanted) :].tobytes()
