"""Epochs over the local cloud: what asks for a plan at once, what bounds that, which plans are refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from msgspec.structs import replace

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.hookspecs.cloud import Notice
from coral.testing.waiting import until
from tests.core.serve.coordinator.test_controller import Sink, World, plan, request, run, template


def said(one: World, words: str) -> bool:
    return any(words in entry.text for entry in one.journal.entries)


def test_a_machine_under_notice_is_replaced_and_its_requests_finish(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [old] = one.ready()
        [machine] = one.joined()
        sink = Sink()
        one.requests.submit(request("r", 40), sink)
        await until(lambda: len(sink.tokens) > 2, 20)
        asked = len(one.planned.views)
        one.cloud.told = [Notice(machine_id=machine, kind="preemption", seconds_left=60.0)]
        await one.controller.notices.look()
        await one.controller.notices.look()
        assert len([e for e in one.journal.entries if "ends in 60 s (preemption)" in e.text]) == 1
        await until(lambda: len(one.planned.views) > asked, 20)
        view = one.planned.views[-1]
        assert [left.id for left in view.leaving] == [machine]
        assert machine not in [held.id for held in view.machines]
        assert old.id not in [running.id for running in view.running]
        await until(lambda: old.state is InstanceState.GONE, 60)
        [new] = one.ready()
        changes = [change for change in one.events.changes if change[1] in ("ready", "draining")]
        assert changes == [(old.id, "ready"), (new.id, "ready"), (old.id, "draining")]
        await until(lambda: one.controller.machines.all()[machine].state is MachineState.RELEASED, 20)
        assert (sink.tokens, sink.error) == (list(range(40)), None)
        assert machine not in new.claim.machines
        assert one.events.lost == [], "it has left in good order"

    run(tmp_path, plan(1, 1), body)


def test_at_the_end_of_a_notice_it_goes_with_or_without_a_successor(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [first, second] = one.ready()
        [machine] = first.claim.machines
        one.cloud.told = [Notice(machine_id=machine, kind="preemption", seconds_left=8.0)]
        await one.controller.notices.look()
        await asyncio.sleep(1.0)
        assert first.state is InstanceState.READY, "there is nothing to be had in its place"
        await until(lambda: first.state is InstanceState.GONE, 20)
        assert second.state is InstanceState.READY

    run(tmp_path, plan(2, 2), body)


def test_a_machine_that_its_cloud_has_taken_is_lost_at_once(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [machine] = one.joined()
        one.cloud.told = [Notice(machine_id=machine, kind="lost", seconds_left=0.0)]
        await one.controller.notices.look()
        assert one.events.lost == [machine]
        await until(lambda: bool(one.ready()) and machine not in one.joined(), 40)

    run(tmp_path, plan(1, 1), body)


def test_a_cloud_without_notices_is_said_once(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)

        async def broken() -> list[Notice]:
            raise RuntimeError("the API is down")

        one.cloud.notices = broken  # type: ignore[method-assign]
        for _ in range(3):
            await one.controller.notices.look()
        assert len([e for e in one.journal.entries if "tells no notices" in e.text]) == 1

    run(tmp_path, plan(1, 1), body)


def test_events_that_follow_one_another_are_planned_for_ever_more_slowly(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        asked, start = len(one.planned.views), time.monotonic()
        while time.monotonic() - start < 9.0:
            one.controller.replan("something flaps")
            await asyncio.sleep(0.1)
        assert 1 <= len(one.planned.views) - asked <= 4, "after 2, 5 and 10 s"

    run(tmp_path, plan(1, 1), body)


def test_the_gate_holds_for_plans_that_events_ask_for(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        running = one.controller.plan
        one.events.refusal = "not on a Friday"
        one.planned.plan = plan(2, 2)
        one.controller.replan("a machine is lost")
        await until(lambda: said(one, "refused by a plugin: not on a Friday"), 20)
        assert one.controller.plan is running
        one.events.refusal = None
        one.controller.replan("a machine is lost")
        await until(lambda: one.controller.plan is one.planned.plan, 20)

    run(tmp_path, plan(1, 1), body)


def test_a_plan_that_saves_next_to_nothing_moves_nothing(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [instance] = one.ready()
        other = replace(template(), id="other", placement=template(2).placement)
        wanted = plan(1, 1)
        (instances,) = wanted.instances
        one.planned.plan = replace(wanted, price_usd_h=0.995, instances=(replace(instances, template=other),))
        one.controller.replan("test")
        await until(lambda: said(one, "the running plan stays: another would save 0.5%"), 20)
        assert one.ready() == [instance]
        one.planned.plan = replace(one.planned.plan, price_usd_h=0.9)
        one.controller.replan("test")
        await until(lambda: one.controller.plan is one.planned.plan, 20)

    run(tmp_path, plan(1, 1), body)
