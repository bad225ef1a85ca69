from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import paper
from benchmarks.allocation import CASES, measured
from benchmarks.data import DataMissing


@pytest.mark.parametrize("form", ["paper", "ours"])
def test_a_record_of_the_core_setup(tmp_path: Path, form: paper.Form) -> None:
    """Over templates of two nodes: closed, the same by the whole program, and again for more demand."""
    try:
        library = paper.library("core", "analytic", folder=tmp_path, max_nodes=2)
    except DataMissing as missing:
        pytest.skip(str(missing))
    record = measured(
        CASES[0], form, 0, library, "analytic", limit_s=60.0, direct_s=60.0 if form == "paper" else 0.0
    )
    closed = record["to_0.0001"]
    assert closed["status"] == "optimal"
    assert closed["gap"] <= 1e-4
    if form == "paper":
        assert closed["cost_usd_h"] == pytest.approx(record["highs_whole"]["cost_usd_h"], rel=3e-4)
    assert record["again_warm"]["cost_usd_h"] == pytest.approx(record["again_cold"]["cost_usd_h"], rel=3e-4)
    assert record["again_warm"]["cost_usd_h"] >= closed["bound_usd_h"] * (1 - 1e-6)
