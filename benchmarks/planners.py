"""Planners against each other, on the paper's setups: same tables, same offers, same demand.

    python -m benchmarks.planners --json                        everything, within --budget seconds
    python -m benchmarks.planners --only core                   a scenario; "core*": all that begin so
    python -m benchmarks.planners --profiler aiconfigurator     tables from measured kernels

Every plan is checked by `plan_check`, which shares no code with the planners. A record per plan: cost, the
fraction of each model's demand that is served, the fraction at which all could be served alike (what a
uniform scale-down leaves), requests/s served. Then, per scenario, the ratios to `coral` beside the paper's
figures, untuned, and where the gain comes from: optimality, multi-node pipelines, pipelines inside a
machine, node sizes, mixing GPU types, not using wide tensor parallelism, slices. Costs compare where
`all_served`: who serves less is cheaper.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from coral_solver_highs.options import HighsOptions
from coral_solver_highs.solver import build as build_highs
from msgspec import Struct
from msgspec.structs import replace

from benchmarks import paper, wide_tp
from benchmarks.market import Sizes, market
from benchmarks.plan_check import faults
from coral.core.plugins import load_plugins
from coral.hookspecs.planner import Library, PlanOptions, View
from coral.types.model import ModelSpec
from coral.types.plan import Plan

LARGE = ("llama3-70b", "gpt-oss-120b", "qwen3-235b")
HEAVY, LIGHT = 40.0, 10.0
"""requests/s of the models that a mix is heavy in, and of the others. The paper's own mixes are not known."""


class Scenario(Struct, frozen=True, kw_only=True):
    """`paper`: the paper's ratios there, baseline over coral (cost; goodput where supply is scarce)."""

    name: str
    setup: paper.Setup
    supply: float
    sizes: Sizes = "paper"
    heavy: str = ""
    paper: dict[str, str] = {}


SCENARIOS = (
    Scenario(name="core", setup="core", supply=6.0, paper={"homo": "1.62x cost", "cauchy": "1.60x cost"}),
    Scenario(name="core-scarce", setup="core", supply=1.25),
    Scenario(name="core-sold", setup="core", supply=6.0, sizes="sold"),
    Scenario(
        name="extended", setup="extended", supply=6.0, paper={"homo": "3.14x cost", "cauchy": "2.66x cost"}
    ),
    Scenario(
        name="extended-scarce",
        setup="extended",
        supply=1.75,
        paper={"homo": "1/7.64 goodput", "cauchy": "1/2.39 goodput at 1.25x cost"},
    ),
    Scenario(name="extended-sold", setup="extended", supply=6.0, sizes="sold"),
    Scenario(
        name="extended-large-heavy",
        setup="extended",
        supply=6.0,
        heavy="large",
        paper={"homo": "2.79x cost", "cauchy": "3.47x cost"},
    ),
    Scenario(
        name="extended-small-heavy",
        setup="extended",
        supply=6.0,
        heavy="small",
        paper={"homo": "2.34x cost", "cauchy": "1.64x cost"},
    ),
)


class Variant(Struct, frozen=True, kw_only=True):
    """A planner with its options. `wide`: a node is TP over all its GPUs. `slices`: nodes may be parts of
    machines; otherwise a node is a whole machine, as in the paper."""

    name: str
    planner: str
    options: dict[str, Any] = {}
    slices: bool = False
    wide: bool = False


ILP = {"choose": "ilp"}
VARIANTS = (
    Variant(name="homo", planner="homo"),
    Variant(name="homo-together", planner="homo", options={"phases": "together"}),
    Variant(name="homo-in-turn", planner="homo", options={"order": "in_turn", "trim_last": False}),
    Variant(name="cauchy", planner="cauchy"),
    Variant(name="cauchy-ilp", planner="cauchy", options=ILP),
    Variant(name="melange", planner="melange"),
    Variant(name="helix", planner="helix"),
    Variant(name="homo-ilp-single-node", planner="homo", options={**ILP, "multi_node": False}),
    Variant(
        name="homo-ilp-in-machine",
        planner="homo",
        options={**ILP, "multi_node": False, "pipelines_in_machine": True},
    ),
    Variant(name="homo-ilp", planner="homo", options=ILP),
    Variant(name="one-gpu-ilp", planner="homo", options={**ILP, "mix_sizes": True}),
    Variant(
        name="one-gpu-ilp-in-machine",
        planner="homo",
        options={**ILP, "mix_sizes": True, "pipelines_in_machine": True},
    ),
    Variant(name="coral", planner="coral"),
    Variant(name="homo-wide-tp", planner="homo", wide=True),
    Variant(name="cauchy-wide-tp", planner="cauchy", wide=True),
    Variant(name="homo-ilp-wide-tp", planner="homo", options=ILP, wide=True),
    Variant(name="coral-wide-tp", planner="coral", wide=True),
    Variant(name="homo-ilp-slices", planner="homo", options={**ILP, "slices": True}, slices=True),
    Variant(name="coral-slices", planner="coral", slices=True),
)
GAINS = (
    ("optimality", "homo", "homo-ilp"),
    ("multi-node pipelines", "homo-ilp-single-node", "homo-ilp"),
    ("pipelines inside a machine", "homo-ilp-single-node", "homo-ilp-in-machine"),
    ("several node sizes", "homo-ilp", "one-gpu-ilp"),
    ("mixing GPU types", "one-gpu-ilp", "coral"),
    ("not using wide TP (homo-ilp)", "homo-ilp-wide-tp", "homo-ilp"),
    ("not using wide TP (coral)", "coral-wide-tp", "coral"),
    ("slices (homo-ilp)", "homo-ilp", "homo-ilp-slices"),
    ("slices (coral)", "coral", "coral-slices"),
)


Named = TypeVar("Named", Scenario, Variant)


class World(Struct, frozen=True, kw_only=True, eq=False):
    """A scenario with its inputs, and what has been built of them."""

    scenario: Scenario
    view: View
    library: Library
    wide: Library | None = None


def specs_of(scenario: Scenario) -> tuple[ModelSpec, ...]:
    specs = paper.models(scenario.setup)
    if not scenario.heavy:
        return specs
    large = scenario.heavy == "large"
    return tuple(
        replace(
            one,
            demand=replace(one.demand, requests_per_s=HEAVY if (one.name in LARGE) == large else LIGHT),
        )
        for one in specs
    )


def world(
    scenario: Scenario, profiler: str, *, seed: int, time_limit_s: float, wide: bool, **limits: Any
) -> World:
    """`limits`: of the library (max_nodes, memory_ratio, folder)."""
    specs = specs_of(scenario)
    library = paper.library(scenario.setup, profiler, **limits)
    offers = market(scenario.setup, specs, library, supply=scenario.supply, seed=seed, sizes=scenario.sizes)
    return World(
        scenario=scenario,
        view=paper.view(specs, offers, paper.plan_options("paper", time_limit_s=time_limit_s)),
        library=library,
        wide=wide_tp.library(scenario.setup, profiler, specs, **limits) if wide else None,
    )


def planned(one: World, variant: Variant) -> dict[str, Any]:
    """The record of one plan. Raises AssertionError where it does not hold."""
    registry = load_plugins()
    options = registry.options_model("planner", variant.planner).model_validate(variant.options)
    planner = registry.build("planner", variant.planner, options)
    plan_options: PlanOptions = replace(one.view.options, slices=variant.slices)
    view = replace(one.view, options=plan_options)
    library = one.library
    if variant.wide:
        assert one.wide is not None
        view, library = replace(view, offers=wide_tp.renamed(view.offers)), one.wide
    begun = time.perf_counter()
    plan: Plan = planner.plan(view, library, build_highs(HighsOptions()))
    seconds = time.perf_counter() - begun
    wrong = [*faults(plan, view), *(note for note in plan.notes if "solver failed" in note)]
    assert not wrong, (variant.name, wrong)
    return record(one.scenario, variant, view, plan, seconds)


def record(scenario: Scenario, variant: Variant, view: View, plan: Plan, seconds: float) -> dict[str, Any]:
    fractions = {
        model.name: min((s.fraction for s in plan.services if s.model == model.name), default=1.0)
        for model in view.models
    }
    goodput = sum(fractions[m.name] * m.demand.requests_per_s for m in view.models)
    return {
        "scenario": scenario.name,
        "variant": variant.name,
        "planner": plan.planner,
        "price_usd_h": plan.price_usd_h,
        "cost_usd_h": plan.price_usd_h + plan.initialization_usd_h,
        "satisfied": plan.satisfied,
        "fractions": {name: round(value, 4) for name, value in fractions.items()},
        "uniform_fraction": round(min(fractions.values()), 4),
        "requests_per_s": goodput,
        "gap": plan.certificate.gap if plan.certificate else None,
        "seconds": round(seconds, 2),
    }


def compared(scenario: Scenario, records: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Ratios to `coral` beside the paper's, and the gains one by one; only what was run."""
    ours = records.get("coral")
    for name, other in records.items():
        if ours is None or name == "coral":
            continue
        yield {
            "scenario": scenario.name,
            "ratio": f"{name} / coral",
            "price": _over(other["price_usd_h"], ours["price_usd_h"]),
            "price_per_request": _over(_each(other), _each(ours)),
            "goodput": _over(other["requests_per_s"], ours["requests_per_s"]),
            "uniform_goodput": _over(other["uniform_fraction"], ours["uniform_fraction"]),
            "all_served": other["satisfied"] and ours["satisfied"],
            "paper": scenario.paper.get(name),
        }
    for what, before, after in GAINS:
        if before in records and after in records:
            yield {
                "scenario": scenario.name,
                "gain": what,
                "price_per_request": _over(_each(records[before]), _each(records[after])),
                "goodput": _over(records[after]["requests_per_s"], records[before]["requests_per_s"]),
                "all_served": records[before]["satisfied"] and records[after]["satisfied"],
            }


def _each(one: dict[str, Any]) -> float:
    """USD per 3,600 requests served."""
    served = one["requests_per_s"]
    return float(one["price_usd_h"]) / served if served > 0 else float("inf")


def _over(a: float, b: float) -> float | None:
    return round(a / b, 3) if b and b != float("inf") and a != float("inf") else None


def run(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    until = time.monotonic() + arguments.budget
    for scenario in chosen(SCENARIOS, arguments.only):
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
        lines: list[dict[str, Any]] = []
        for seed in seeds:
            records: dict[str, dict[str, Any]] = {}
            for line in _variants(scenario, seed, arguments, until):
                yield line
                if "left_out" not in line:
                    records[line["variant"]] = line
            found = list(compared(scenario, records))
            yield from ({"seed": seed, **line} for line in found)
            lines += found
        if len(seeds) > 1:
            yield from over_seeds(scenario, lines)


def _variants(
    scenario: Scenario, seed: int, arguments: argparse.Namespace, until: float
) -> Iterator[dict[str, Any]]:
    variants = chosen(VARIANTS, arguments.variants)
    one: World | None = None
    for variant in variants:
        head = {"profiler": arguments.profiler, "seed": seed}
        if time.monotonic() > until:
            left_out = {"scenario": scenario.name, "variant": variant.name, "left_out": "the budget is spent"}
            yield {**head, **left_out}
            continue
        one = one or world(
            scenario,
            arguments.profiler,
            seed=seed,
            time_limit_s=arguments.time_limit,
            wide=any(some.wide for some in variants),
        )
        yield {**head, **planned(one, variant)}


def over_seeds(scenario: Scenario, lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Geometric means of the ratios over the seeds in which they are known, and how many those are."""
    for kind in ("ratio", "gain"):
        for name in dict.fromkeys(line[kind] for line in lines if kind in line):
            same = [line for line in lines if line.get(kind) == name]
            yield {
                "scenario": scenario.name,
                f"{kind}_over_seeds": name,
                **{
                    what: _mean([line[what] for line in same if line.get(what)])
                    for what in ("price_per_request", "goodput")
                },
                "seeds": len(same),
                "all_served": all(line["all_served"] for line in same),
                "paper": scenario.paper.get(name.partition(" / ")[0]),
            }


def _mean(values: list[float]) -> float | None:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 3) if values else None


def chosen(all_of: Iterable[Named], only: str) -> list[Named]:
    """Those whose name is listed, or, with a trailing `*`, begins so; all where nothing is said."""
    wanted = [name for name in only.split(",") if name]
    return [
        one
        for one in all_of
        if not wanted or any(w == one.name or (w[-1] == "*" and one.name.startswith(w[:-1])) for w in wanted)
    ]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default="", help="scenarios by name, commas between; core* for all of core")
    parser.add_argument("--variants", default="", help="planner variants by name, commas between")
    parser.add_argument("--profiler", default="analytic", help="whose step costs the tables are made of")
    parser.add_argument("--seeds", default="0", help="of what can be had, commas between")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds a plan may take")
    parser.add_argument("--budget", type=float, default=1200.0, help="seconds after which no plan is begun")
    arguments = parser.parse_args(argv)
    for line in run(arguments):
        if arguments.json:
            print(json.dumps(line), flush=True)
        else:
            print("  ".join(f"{key}={value}" for key, value in line.items()), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
