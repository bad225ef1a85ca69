"""Several epochs: each plan is carried out by the code that serves; what runs then is the next one's start.

Machines keep their nodes, so that what is free of them is in pieces; every plan of the way is compared with a
program with one bin per machine that knows which instance sits where.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.reconcile import (
    DrainInstance,
    EndMachine,
    HeldInstance,
    HeldMachine,
    Rent,
    StartInstance,
    reconcile,
)
from coral.core.plan.planners.coral import build
from coral.core.plan.planners.options import CoralOptions
from coral.hookspecs.planner import View
from coral.hookspecs.solver import Solver
from coral.testing.worlds import World
from coral.types.hardware import Machine, Offer
from coral.types.plan import Plan, RunningInstance
from tests.core.plan.asked import Asked, asked_world
from tests.core.plan.plain import least_cost

WORLDS = 3 * int(os.environ.get("CORAL_CAMPAIGN", "1"))
EPOCHS = 4


class Site:
    """Machines and instances, changed by what `reconcile` says until it says nothing more."""

    def __init__(self, view: View) -> None:
        self.offers = {(o.machine_type.name, o.domain, o.market): o for o in view.offers}
        self.machines: dict[str, HeldMachine] = {}
        self.instances: dict[str, HeldInstance] = {}
        self._numbers = count()

    def carry_out(self, plan: Plan) -> None:
        for _ in range(60):
            actions = reconcile(plan, list(self.machines.values()), list(self.instances.values())).actions
            if not actions:
                return
            for action in actions:
                match action:
                    case Rent(offer=key):
                        self._rent(self.offers[key.machine_type, key.domain, key.market])
                    case StartInstance(template=template, domain=domain, claim=claim):
                        name = f"i{next(self._numbers):03}"
                        self.instances[name] = HeldInstance(
                            id=name, template=template, domain=domain, state=InstanceState.READY, claim=claim
                        )
                    case DrainInstance(instance=name):
                        del self.instances[name]
                    case EndMachine(machine=name):
                        del self.machines[name]
        raise AssertionError("the plan is never reached")

    def _rent(self, offer: Offer) -> None:
        name = f"m{next(self._numbers):03}"
        machine = Machine(
            id=name,
            machine_type=offer.machine_type,
            domain=offer.domain,
            price_usd_h=offer.price_usd_h,
            market=offer.market,
            preemption_per_h=offer.preemption_per_h,
        )
        self.machines[name] = HeldMachine(machine=machine, state=MachineState.JOINED)

    def seen(self, view: View) -> View:
        """What a planner is shown: of every offer what is left of it."""
        held = Counter(
            (m.machine.machine_type.name, m.machine.domain, m.machine.market) for m in self.machines.values()
        )
        offers = tuple(
            replace(o, obtainable=max(0, o.obtainable - held[o.machine_type.name, o.domain, o.market]))
            for o in view.offers
        )
        running = tuple(
            RunningInstance(id=one.id, template=one.template, domain=one.domain, nodes=one.claim.nodes)
            for one in self.instances.values()
        )
        machines = tuple(one.machine for one in self.machines.values())
        return replace(view, offers=offers, machines=machines, running=running)


def fragmented(site: Site) -> bool:
    """Whether a machine has both GPUs in use and GPUs free."""
    used: Counter[str] = Counter()
    for one in site.instances.values():
        for node in one.claim.nodes:
            used[node.machine_id] += len(node.devices)
    return any(0 < used[id] < held.machine.machine_type.gpus for id, held in site.machines.items())


@pytest.mark.parametrize("asked", [(), ("spot", "preemption", "share"), ("zone", "gpus")], ids="-".join)
def test_every_plan_of_the_way_is_the_cheapest(highs: Solver, asked: tuple[Asked, ...]) -> None:
    in_pieces = compared = kept = 0
    for seed in range(WORLDS):
        world = asked_world(
            seed, asked, slices=True, coupled=seed % 2 == 0, sizes=(1, 2, 4), running=0, most=5
        )
        site = Site(world.view)
        draw = np.random.default_rng(seed)
        for _ in range(EPOCHS):
            models = tuple(
                replace(
                    one,
                    demand=replace(one.demand, requests_per_s=round(float(draw.uniform(0.2, 2.5)), 2)),
                )
                for one in world.view.models
            )
            view = site.seen(replace(world.view, models=models))
            in_pieces += fragmented(site)
            plan = build(CoralOptions()).plan(view, world.library, highs)
            best = least_cost(World(view=view, library=world.library))
            assert plan.satisfied == (best is not None), plan.notes
            if best is not None:
                assert plan.certificate is not None
                assert plan.certificate.cost_usd_h == pytest.approx(best, rel=1e-6, abs=1e-6)
                compared += 1
            kept += sum(one.kept for one in plan.instances)
            site.carry_out(plan)
            assert Counter({}) == _difference(plan, site)
    assert in_pieces > 0
    assert compared > 0
    assert kept > 0


def _difference(plan: Plan, site: Site) -> Counter[tuple[str, str]]:
    """Instances that are planned and do not run, or the other way round."""
    planned = Counter[tuple[str, str]]()
    for one in plan.instances:
        planned[one.template.id, str(one.domain)] += one.count
    there = Counter((one.template.id, str(one.domain)) for one in site.instances.values())
    return (planned - there) + (there - planned)
