from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coral.core.operate.dispatch import Dispatcher
from coral.core.operate.ledger import Ledger
from coral.types.stage import KvCapacity


def ledger(**blocks: int) -> Ledger:
    return Ledger({node: KvCapacity(blocks=n, block_size=4, bytes=0) for node, n in blocks.items()})


def test_it_reserves_extends_and_frees_on_the_whole_route() -> None:
    book = ledger(a=4, b=6)
    book.reserve("r", ("a", "b"), 5)
    assert (book.free_blocks("a"), book.free_blocks("b")) == (2, 4)
    book.extend("r", 8)
    assert (book.free_blocks("a"), book.free_blocks("b")) == (2, 4)
    book.extend("r", 16)
    assert (book.free_blocks("a"), book.free_blocks("b")) == (0, 2)
    assert book.lacking("r", 20) == {"a": 1}
    book.free("r")
    assert book.idle
    book.check()


def test_it_never_goes_below_zero() -> None:
    book = ledger(a=2, b=9)
    with pytest.raises(ValueError, match="no room for 9 tokens of r on a"):
        book.reserve("r", ("b", "a"), 9)
    assert book.free_blocks("b") == 9
    book.reserve("r", ("b", "a"), 8)
    with pytest.raises(ValueError, match="no room to extend"):
        book.extend("r", 9)
    with pytest.raises(ValueError, match="already"):
        book.reserve("r", ("b",), 1)
    with pytest.raises(ValueError, match="at most once"):
        book.reserve("q", ("b", "b"), 1)
    book.check()


def test_what_an_empty_node_could_hold() -> None:
    book = ledger(a=2)
    book.reserve("r", ("a",), 8)
    assert book.can_ever_hold("a", 8)
    assert not book.can_ever_hold("a", 9)
    assert not book.has_room("a", 1)


@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=5), picks=st.integers(1, 200))
def test_load_follows_the_weights_within_one_request(weights: list[float], picks: int) -> None:
    dispatcher = Dispatcher([[(str(index), weight) for index, weight in enumerate(weights)]])
    for _ in range(picks):
        assert dispatcher.pick(lambda node: True) is not None
    for index, weight in enumerate(weights):
        share = picks * weight / sum(weights)
        assert abs(dispatcher.picks[str(index)] - share) <= 1 + 1e-6


def test_no_turn_is_used_up_where_a_stage_is_full() -> None:
    dispatcher = Dispatcher([[("a", 1.0), ("b", 1.0)], [("c", 1.0)]])
    assert dispatcher.pick(lambda node: node != "c") is None
    assert dispatcher.picks == {"a": 0, "b": 0, "c": 0}
    assert dispatcher.pick(lambda node: True) == ("a", "c")
    assert dispatcher.pick(lambda node: node != "a") == ("b", "c")
