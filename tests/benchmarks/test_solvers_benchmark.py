"""The solvers benchmark, small: its records say what it promises."""

from __future__ import annotations

import pytest

from benchmarks import solvers


def test_overhead_is_measured_beside_the_same_solve_here() -> None:
    small, transfer = solvers.overhead([500], times=2)
    assert small["direct_ms"] > 0
    assert 0 < small["supervised_ms"] < 60e3
    assert transfer["entries"] > 1500
    assert 0 < transfer["supervised_ms"] < 60e3


def test_solvers_agree_on_a_wide_program() -> None:
    lines = [
        line for line in solvers.solves([60], 3.0, "highs,mip,pyomo appsi_highs") if "skipped" not in line
    ]
    linear = [line for line in lines if line["kind"] == "linear"]
    assert {line["status"] for line in linear} == {"optimal"}
    assert max(line["objective"] for line in linear) == pytest.approx(
        min(line["objective"] for line in linear)
    )
    integer = [line for line in lines if line["kind"] == "integer"]
    assert {line["status"] for line in integer} <= {"optimal", "feasible"}
    assert len(integer) >= 2
    best = min(line["objective"] for line in integer)
    assert all(line["bound"] <= best * (1 + 1e-6) for line in integer)
    assert all(line["objective"] >= linear[0]["objective"] for line in integer)
