"""Stop strings, also across tokens."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from coral.core.serve.frontdoor.text.stops import StopStrings


def run(stops: list[str], deltas: list[str]) -> tuple[str, bool]:
    matcher, shown = StopStrings(stops), ""
    for delta in deltas:
        text, met = matcher.add(delta)
        shown += text
        if met:
            return shown, True
    return shown + matcher.end(), False


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_however_it_is_cut_the_text_ends_before_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    deltas = [text[a:b] for a, b in itertools.pairwise(edges)]
    shown, met = run(stops, deltas)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    assert met == (first is not None)
    if first is None:
        assert shown == text
    else:
        # a shorter stop that ends earlier is met before a longer one that begins earlier can be
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert first <= len(shown) <= ends
        assert text.startswith(shown)
        assert not any(stop in shown for stop in stops)


def test_nothing_that_may_become_a_stop_is_shown() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.add("Hello\n") == ("Hello", False)
    assert matcher.add("\nUs") == ("", False)
    assert matcher.add("ual") == ("\n\nUsual", False)
    assert matcher.add("\n\nUser: x") == ("", True)
