"""Stop strings: nothing of one is ever released, and the cut into pieces changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goinfer.runtime.stops import StopScanner


def scan(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, bool, str]:
    """Released text, whether a stop was hit, and the text still withheld."""
    scanner, whole, safe = StopScanner(stops), "", 0
    for piece in pieces:
        whole += piece
        result = scanner.push(piece)
        safe += result.safe
        if result.hit:
            return whole[:safe], True, whole[safe:]
    return whole[:safe], False, whole[safe:]


def by_definition(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=3), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3).map(tuple),
)
def test_any_cut_equals_the_definition(pieces: list[str], stops: tuple[str, ...]) -> None:
    text = "".join(pieces)
    want, hit = by_definition(text, stops)
    released, got_hit, withheld = scan(pieces, stops)
    assert (got_hit, released if hit else released + withheld) == (hit, want)
    if not hit:
        assert not withheld or any(s.startswith(withheld) for s in stops)
        longer = [text[i:] for i in range(len(released)) if any(s.startswith(text[i:]) for s in stops)]
        assert not longer, "text that may begin a stop string was released"


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        (["abc", "DEF", "G", "HI", "J", "k"], "abc"),
        (["abcDE", "FGHIJkl"], "abc"),
        (["DEF", "DEFGHIJ"], "DEF"),
        (list("xDEFGHIJ"), "x"),
    ],
)
def test_a_stop_string_across_tokens(pieces: list[str], want: str) -> None:
    assert scan(pieces, ("DEFGHIJ",))[:2] == (want, True)


def test_without_stops_everything_is_released_at_once() -> None:
    assert scan(["a", "b"], ()) == ("ab", False, "")
