from __future__ import annotations

import pytest

from coral.testing.contract import Contract, overrides_contract


class Suite(Contract):
    def test_one(self) -> None:
        assert True

    def test_two(self) -> None:
        assert True


def test_a_contract_test_is_not_overridden_by_the_way() -> None:
    with pytest.raises(TypeError, match=r"Mine\.test_one overrides a test of Suite"):
        type("Mine", (Suite,), {"test_one": lambda self: None})
    with pytest.raises(TypeError, match="test_two"):
        type("Mine", (Suite,), {"test_two": None})


def test_with_a_reason_it_is() -> None:
    marked = overrides_contract(reason="this backend has no time limit")(lambda self: None)
    assert type("Mine", (Suite,), {"test_one": marked})
    with pytest.raises(ValueError, match="reason"):
        overrides_contract(reason=" ")


def test_tests_may_be_added_and_inherited() -> None:
    mine = type("Mine", (Suite,), {"test_three": lambda self: None})
    assert type("More", (mine,), {"helper": 1})
    with pytest.raises(TypeError, match="test_three overrides a test of Mine"):
        type("More", (mine,), {"test_three": lambda self: None})


def test_a_fixture_that_is_not_defined_is_named() -> None:
    from coral.testing.router import RouterContract

    class Incomplete(RouterContract):
        pass

    with pytest.raises(LookupError, match="Incomplete has to define the fixture `router`"):
        Incomplete()._undefined("router")
