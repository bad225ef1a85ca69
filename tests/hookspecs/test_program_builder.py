from __future__ import annotations

import numpy as np
import pytest

from coral.hookspecs.planner import ProgramBuilder


def test_blocks_become_a_program_by_column() -> None:
    builder = ProgramBuilder()
    rows = builder.rows(2, lower=[1.0, -np.inf], upper=[np.inf, 4.0])
    x = builder.variables(2, cost=[3.0, 2.0], upper=5.0, integer=True)
    y = builder.variables(1, cost=1.0)
    builder.entries(rows[1], x, [1.0, 2.0])
    builder.entries(rows, y, 1.0)
    builder.entries(rows[0], x, 1.0)
    program = builder.build()
    assert (program.columns, program.rows) == (3, 2)
    np.testing.assert_array_equal(program.cost, [3.0, 2.0, 1.0])
    np.testing.assert_array_equal(program.integer, [True, True, False])
    np.testing.assert_array_equal(program.indptr, [0, 2, 4, 6])
    np.testing.assert_array_equal(program.indices, [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(program.data, [1.0, 1.0, 1.0, 2.0, 1.0, 1.0])
    np.testing.assert_array_equal(program.activity(np.array([1.0, 1.0, 2.0])), [4.0, 5.0])


def test_entries_that_meet_are_summed_and_zeros_dropped() -> None:
    builder = ProgramBuilder()
    x, row = builder.variables(2), builder.rows(1)
    builder.entries(row, x, [1.0, 2.0])
    builder.entries(row, x, [3.0, -2.0])
    program = builder.build()
    np.testing.assert_array_equal(program.data, [4.0])
    np.testing.assert_array_equal(program.indptr, [0, 1, 1])


def test_more_can_be_added_to_what_was_built() -> None:
    builder = ProgramBuilder()
    x = builder.variables(1, cost=1.0)
    before = builder.build()
    builder.entries(builder.rows(1, lower=2.0), x, 1.0)
    assert (before.rows, builder.build().rows) == (0, 1)


def test_nothing_is_a_program_too() -> None:
    program = ProgramBuilder().build()
    assert (program.columns, program.rows, len(program.data)) == (0, 0, 0)


def test_names_are_for_people() -> None:
    builder = ProgramBuilder()
    builder.variables(1)
    builder.variables(2, names=["a", "b"])
    assert builder.build().names == ("", "a", "b")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"lower": 2.0, "upper": 1.0}, "exclude"),
        ({"cost": np.inf}, "finite"),
        ({"lower": np.nan}, "not a number"),
        ({"names": ["one"]}, "names"),
    ],
)
def test_bad_variables_are_refused(bounds: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgramBuilder().variables(2, **bounds)  # type: ignore[arg-type]


def test_entries_must_name_what_is_there() -> None:
    builder = ProgramBuilder()
    x, row = builder.variables(1), builder.rows(1)
    with pytest.raises(ValueError, match="not been added"):
        builder.entries(row, x + 1, 1.0)
    with pytest.raises(ValueError, match="finite"):
        builder.entries(row, x, np.nan)
    with pytest.raises(ValueError, match="exclude"):
        builder.rows(1, lower=1.0, upper=0.0)
