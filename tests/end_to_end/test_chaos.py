"""The chaos benchmarks in small: instances come and go under load, processes are killed, clients leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import scenarios
from benchmarks.chaos.scenarios import Given


def all_are_right(record: dict[str, Any]) -> None:
    """Every request has finished, with what must come of it."""
    assert record["finished"] == record["requests"], record
    assert record["unequal"] == 0, record


@pytest.mark.parametrize("apart", [False, True], ids=["mixed", "disaggregated"])
def test_no_request_hangs_or_is_lost_while_instances_come_and_go(tmp_path: Path, apart: bool) -> None:
    record = scenarios.churn(tmp_path, Given(scale=0.05, seed=1, disaggregate=apart))
    all_are_right(record)
    assert record["requests"] == 77
    assert 0 < record["instances_failed"] <= record["killed"] == 4
    assert record["instances_added"] >= 9
    assert record["instances_removed"] >= 1
    assert record["pids"] >= 2 * (record["instances_seen"] - record["killed"]), (
        "a scheduler and a worker each"
    )


@pytest.mark.parametrize("apart", [False, True], ids=["mixed", "disaggregated"])
def test_streams_of_a_real_engine_go_on_byte_for_byte_when_processes_are_killed(
    tmp_path: Path, apart: bool
) -> None:
    record = scenarios.churn(tmp_path, Given(engine="torch", scale=0.13, seed=1, disaggregate=apart))
    all_are_right(record)
    assert record["requests"] == 26
    assert 0 < record["instances_failed"] == record["instances_added"] <= record["killed"] == 2


def test_no_request_is_lost_when_agents_die_and_processes_stand_still(tmp_path: Path) -> None:
    record = scenarios.harsh(tmp_path, Given(scale=0.1, seed=1))
    all_are_right(record)
    assert record["killed_roles"] == {"worker": 1, "scheduler": 1, "agent": 1, "warmed": 1}
    assert record["instances_failed"] >= 2


def test_a_killed_stage_is_noticed_planned_anew_and_rebuilt(tmp_path: Path) -> None:
    record = scenarios.stage(tmp_path, Given(scale=0.1, seed=1))
    all_are_right(record)
    assert record["noticed_s_max"] < 10.0
    assert record["replanned"] == record["kills"] == 2
    assert record["retried"] >= 1


def test_clients_that_leave_in_any_phase_leave_no_blocks_behind(tmp_path: Path) -> None:
    record = scenarios.aborts(tmp_path, Given(scale=0.1, seed=1, disaggregate=True))
    all_are_right(record)
    assert record["left"] >= 80
    assert record["aborted"] >= 10, "leaving after it was submitted"
    assert set(record["left_how"]) >= {"while streaming", "before an answer", "stop string", "timeout"}
    assert record["rss_processes"] >= 8


def test_workers_start_forked_and_afresh(tmp_path: Path) -> None:
    record = scenarios.starts(tmp_path, Given(scale=0.0))
    assert record["2_fresh_over_forked"] > 0
