"""Random worlds with options asked for, a seed each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from coral.hookspecs.planner import PlanOptions, View
from coral.testing.worlds import MemoryLibrary, World, random_world
from coral.types.hardware import Market, Offer
from coral.types.model import ModelSpec

Asked = Literal["spot", "preemption", "share", "zone", "machine", "gpus", "cost", "budget"]


def asked_world(
    seed: int,
    asked: Sequence[Asked],
    *,
    slices: bool,
    coupled: bool,
    running: int = 3,
    choose: bool = False,
    most: int = 4,
    domains: int = 2,
    models: int = 2,
    sizes: Sequence[int] = (1, 2),
) -> World:
    """Where the plan chooses its phases, a mixed instance does about what one of prefill and one of decode on
    half of its nodes do."""
    options = PlanOptions(
        target_utilization=0.8, slices=slices, couple_phases=coupled, gap=0.0, time_limit_s=60.0
    )
    world = random_world(
        seed,
        options,
        running=running,
        choose=choose,
        most=most,
        domains=domains,
        models=models,
        sizes=sizes,
        machine_sizes=sizes,
        initialization_s=1800.0,
    )
    draw = np.random.default_rng(seed + 1000)
    view = _with_spot(world.view, draw, preempted="preemption" in asked) if "spot" in asked else world.view
    options = view.options
    if "share" in asked:
        options = replace(options, spot_share=_figure(draw, 0.0, 0.9))
    if "budget" in asked:
        options = replace(options, budget_usd_h=_figure(draw, 5.0, 30.0))
    view = replace(view, options=options, models=tuple(_with(one, draw, asked) for one in view.models))
    return World(view=view, library=_mixed_at_half(world.library) if choose else world.library)


def _mixed_at_half(library: MemoryLibrary) -> MemoryLibrary:
    return MemoryLibrary(
        replace(one, throughput=one.throughput / 2) if one.phase == "mixed" else one
        for some in library.templates.values()
        for one in some
    )


def _with(spec: ModelSpec, draw: np.random.Generator, asked: Sequence[Asked]) -> ModelSpec:
    if "zone" in asked:
        spec = replace(spec, survive_zone=_figure(draw, 0.1, 0.6))
    if "machine" in asked:
        spec = replace(spec, survive_machine=_figure(draw, 0.1, 1.0))
    if "gpus" in asked:
        spec = replace(spec, max_gpus=int(draw.integers(4, 14)))
    if "cost" in asked:
        spec = replace(spec, max_cost_usd_h=_figure(draw, 5.0, 18.0))
    return spec


def _with_spot(view: View, draw: np.random.Generator, *, preempted: bool) -> View:
    """Some offers also on the spot market, and what is held of one market or the other."""
    offers: list[Offer] = list(view.offers)
    for one in view.offers:
        if draw.random() < 0.6:
            spot = replace(
                one,
                market="spot",
                price_usd_h=round(one.price_usd_h * _figure(draw, 0.3, 0.8), 3),
                preemption_per_h=_figure(draw, 0.0, 0.5) if preempted else 0.0,
                obtainable=int(draw.integers(0, 3)),
            )
            offers.append(spot)
    market: Market = "spot" if draw.random() < 0.5 else "on_demand"
    machines = tuple(replace(one, market=market) for one in view.machines)
    return replace(view, offers=tuple(offers), machines=machines)


def _figure(draw: np.random.Generator, low: float, high: float) -> float:
    return round(float(draw.uniform(low, high)), 2)
