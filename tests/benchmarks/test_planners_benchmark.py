from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks import planners, wide_tp
from benchmarks.data import DataMissing
from benchmarks.plan_check import faults
from benchmarks.planners import (
    GAINS,
    SCENARIOS,
    VARIANTS,
    World,
    chosen,
    compared,
    over_seeds,
    planned,
    world,
)
from coral.types.plan import Plan

SOME = ("homo", "cauchy", "homo-ilp", "coral", "coral-wide-tp", "coral-slices")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The core setup over templates of two nodes."""
    folder: Path = tmp_path_factory.mktemp("libraries")
    try:
        made = world(
            SCENARIOS[0],
            "analytic",
            seed=0,
            time_limit_s=20.0,
            wide=False,
            max_nodes=2,
            folder=folder / "plain",
        )
    except DataMissing as missing:
        pytest.skip(str(missing))
    wide = wide_tp.library("core", "analytic", made.view.models, folder=folder / "wide", max_nodes=2)
    return replace(made, wide=wide)


@pytest.fixture(scope="module")
def records(small: World) -> dict[str, dict[str, Any]]:
    return {name: planned(small, one) for name in SOME for one in chosen(VARIANTS, name)}


def test_more_freedom_is_never_dearer(records: dict[str, dict[str, Any]]) -> None:
    assert all(one["satisfied"] for one in records.values())
    cost = {name: one["cost_usd_h"] for name, one in records.items()}
    assert cost["coral"] <= cost["homo-ilp"] * (1 + 1e-3)
    assert cost["homo-ilp"] <= cost["homo"] * (1 + 1e-3)
    assert cost["coral"] <= cost["cauchy"] * (1 + 1e-3)
    assert cost["coral"] <= cost["coral-wide-tp"] * (1 + 1e-3)
    assert records["coral-slices"]["price_usd_h"] <= records["coral"]["price_usd_h"] * (1 + 1e-3)


def test_ratios_are_printed_beside_the_papers(records: dict[str, dict[str, Any]]) -> None:
    lines = list(compared(SCENARIOS[0], records))
    homo = next(line for line in lines if line.get("ratio") == "homo / coral")
    assert homo["paper"] == "1.62x cost"
    assert homo["price"] == pytest.approx(
        records["homo"]["price_usd_h"] / records["coral"]["price_usd_h"], abs=1e-3
    )
    gains = [line["gain"] for line in lines if "gain" in line]
    assert gains == [what for what, before, after in GAINS if before in records and after in records]


def test_ratios_are_averaged_over_seeds() -> None:
    lines = [
        {"ratio": "homo / coral", "price_per_request": 1.0, "goodput": 1.0, "all_served": True},
        {"ratio": "homo / coral", "price_per_request": 4.0, "goodput": None, "all_served": False},
        {"gain": "optimality", "price_per_request": 2.0, "goodput": 1.0, "all_served": True},
    ]
    homo, gain = over_seeds(SCENARIOS[0], lines)
    assert (homo["price_per_request"], homo["goodput"], homo["seeds"]) == (2.0, 1.0, 2)
    assert homo["paper"] == "1.62x cost"
    assert not homo["all_served"]
    assert gain["all_served"]
    assert gain["gain_over_seeds"] == "optimality"


def test_a_plan_that_does_not_hold_is_found_out(small: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Plan] = []

    def keep(plan: Plan, view: object) -> list[str]:
        seen.append(plan)
        return []

    monkeypatch.setattr(planners, "faults", keep)
    planned(small, chosen(VARIANTS, "homo")[0])
    plan, view = seen[0], small.view
    assert faults(plan, view) == []
    machines = plan.machines
    assert faults(replace(plan, machines=machines[1:]), view)
    assert faults(replace(plan, machines=(replace(machines[0], new=10_000), *machines[1:])), view)
    assert faults(replace(plan, price_usd_h=plan.price_usd_h + 1), view)
    assert faults(replace(plan, instances=plan.instances[1:]), view)
    assert faults(replace(plan, services=(replace(plan.services[0], capacity=0.0), *plan.services[1:])), view)


def test_scenarios_and_variants_are_chosen_by_name() -> None:
    assert [one.name for one in chosen(SCENARIOS, "core*")] == ["core", "core-scarce", "core-sold"]
    assert chosen(SCENARIOS, "") == list(SCENARIOS)
    assert [one.name for one in chosen(VARIANTS, "homo,coral")] == ["homo", "coral"]
    known = {one.name for one in VARIANTS}
    assert all({before, after} <= known for _, before, after in GAINS)
