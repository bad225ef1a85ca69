"""The controller over the local cloud: real agents, real processes, schedulers that are small scripts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import zmq
from coral_cloud_local.cloud import DOMAIN, LocalCloud
from coral_cloud_local.options import LocalMachineType, LocalOptions

from coral.core.operate.lifecycle import InstanceState, MachineState
from coral.core.operate.slots import Claim
from coral.core.serve import agent
from coral.core.serve.coordinator.control import Control
from coral.core.serve.coordinator.controller import Controller, ControllerOptions
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance
from coral.core.serve.coordinator.requests import RequestOptions, RequestTable
from coral.core.serve.coordinator.specs import InstanceLayout, ServingModel, StepLimits, layout
from coral.core.serve.coordinator.switchboard import Switchboard
from coral.core.serve.coordinator.tokens import TokenSocket
from coral.errors import CloudError, EngineError, InfeasibleError, SolverError
from coral.hookspecs.engine import Launch
from coral.hookspecs.planner import PlanOptions, View
from coral.hookspecs.router import Candidate, RouteRequest
from coral.testing.processes import alive
from coral.testing.waiting import until
from coral.types.hardware import NodeType, Offer
from coral.types.model import Slo
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan, PlannedInstances, PlannedMachines
from coral.types.request import GenerateRequest, Sampling, Token

SCHEDULER = """
import sys, time, zmq
from coral.core.serve.net.wire import *
coordinator, instance, gets_ready = sys.argv[1:4]
context = zmq.Context()
control = context.socket(zmq.DEALER)
control.connect(coordinator)
control.send(encode(SchedulerHello(instance=instance, generation=1, pid=0, address="nowhere")))
push = context.socket(zmq.PUSH)
from coral.types.request import Token
while True:
    if not control.poll(300):
        control.send(encode(Heartbeat(at_s=time.time())))
        continue
    message = decode(control.recv())
    if isinstance(message, RunInstance):
        push.connect(message.tokens_address)
        if gets_ready == "True":
            control.send(encode(InstanceReady(instance=instance, kv_tokens=100, max_request_tokens=50)))
    elif isinstance(message, Submit):
        request = message.request
        for position in range(len(request.generated), request.sampling.max_tokens):
            finish = "length" if position == request.sampling.max_tokens - 1 else None
            token = Token(request=request.id, attempt=0, position=position, token=position, finish=finish)
            push.send(encode(Tokens(instance=instance, node="n", tokens=(token,))))
            time.sleep(0.05)
    elif isinstance(message, Drain):
        control.send(encode(Drained(instance=instance)))
"""
SLEEP = "import time; time.sleep(300)"
EAT = "b = b'x' * (300 << 20); import time; time.sleep(300)"
MODEL = ServingModel(
    name="m",
    source="/m",
    layers=4,
    max_model_len=64,
    expected_output_tokens=4,
    dtype="float32",
    engine="script",
)


class Moody(LocalCloud):
    """The local cloud, which says nothing of its offers while `fault` is set."""

    fault: CloudError | None = None

    async def offers(self) -> Sequence[Offer]:
        if self.fault is not None:
            raise self.fault
        return await super().offers()


class Scripts:
    """Launches of a fake engine: what its workers run is `worker_code`."""

    def __init__(self, control: str, cloud: LocalCloud) -> None:
        self.control = control
        self.gpus = {gpu.name: gpu for gpu in cloud.gpus()}
        self.worker_code = SLEEP
        self.gets_ready = True
        self.fault: EngineError | None = None

    def layout(self, instance: str, template: Template, claim: Claim) -> InstanceLayout:
        limits = {name: StepLimits(tokens=8, requests=8) for name in self.gpus}
        return layout(template, claim, MODEL, instance=instance, generation=1, gpus=self.gpus, limits=limits)

    def fingerprint(self, model: str) -> str:
        return "as ever"

    def scheduler(self, layout: InstanceLayout) -> Launch:
        return Launch(
            argv=(sys.executable, "-c", SCHEDULER, self.control, layout.spec.instance, str(self.gets_ready))
        )

    def worker(self, layout: InstanceLayout, seat: int, scheduler_address: str) -> Launch:
        if self.fault is not None:
            raise self.fault
        return Launch(argv=(sys.executable, "-c", self.worker_code))


class FirstRouter:
    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        return among[0]

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        return


class Events:
    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.refusal: str | None = None

    def plan_made(self, plan: Plan, previous: Plan | None) -> None:
        return

    def instance_changed(self, instance: str, model: str, before: str, after: str) -> None:
        self.changes.append((instance, after))

    def machine_lost(self, machine: str, reason: str) -> None:
        self.lost.append(machine)

    def refuse_plan(self, plan: Plan, previous: Plan | None) -> str | None:
        return self.refusal

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        return


class Planned:
    """A planner that answers with what the test wants."""

    def __init__(self, plan: Plan) -> None:
        self.plan: Plan | None = plan
        self.views: list[View] = []

    async def ask(self, view: View, *, patience_s: float) -> Plan:
        self.views.append(view)
        if self.plan is None:
            raise SolverError("the solver has died")
        return self.plan

    def fallback(self, view: View) -> Plan:
        raise AssertionError("something runs")


class Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.error: Exception | None = None
        self.ended = False

    def on_tokens(self, tokens: Sequence[Token]) -> None:
        self.tokens += [token.token for token in tokens]
        self.ended = self.ended or tokens[-1].finish is not None

    def on_error(self, error: Exception) -> None:
        self.error, self.ended = error, True


def template(nodes: int = 1) -> Template:
    """`nodes` stages of one node each."""
    node = StageNode(node_type=NodeType("local-small", 1), throughput=1.0)
    cuts = [4 * i // nodes for i in range(nodes + 1)]
    stages = [Stage(first_layer=a, end_layer=b, nodes=(node,)) for a, b in pairwise(cuts)]
    slo = Slo(prefill_s=1, decode_s=1)
    placement = Placement(stages=tuple(stages))
    return Template(id=f"t{nodes}", model="m", phase="mixed", slo=slo, placement=placement, throughput=1.0)


def plan(machines: int, count: int, nodes: int = 1) -> Plan:
    rented = PlannedMachines(
        machine_type="small", domain=DOMAIN, market="on_demand", price_usd_h=1.0, kept=0, new=machines
    )
    return Plan(
        planner="test",
        machines=(rented,),
        instances=(PlannedInstances(template=template(nodes), domain=DOMAIN, count=count),),
        services=(),
        price_usd_h=float(machines),
        initialization_usd_h=0.0,
        certificate=None,
    )


class World:
    def __init__(self, controller: Controller, requests: RequestTable, events: Events) -> None:
        self.controller = controller
        self.requests = requests
        self.events = events
        self.scripts: Scripts
        self.planned: Planned
        self.journal: Journal
        self.cloud: Moody
        self.later_s = 0.0
        """The controller's clock is so far ahead of ours."""

    def instances(self, *states: InstanceState) -> list[LiveInstance]:
        return [one for one in self.controller.instances.all().values() if one.state in states]

    def ready(self) -> list[LiveInstance]:
        return self.instances(InstanceState.READY)

    def joined(self) -> list[str]:
        machines = self.controller.machines.all().values()
        return [one.id for one in machines if one.state is MachineState.JOINED]

    def pids(self) -> list[int]:
        agents = [one.agent_pid for one in self.controller.machines.living()]
        processes = [
            p.pid for one in self.controller.instances.all().values() for p in one.processes.values()
        ]
        return [pid for pid in agents + processes if pid]


@asynccontextmanager
async def world(folder: Path, first: Plan, count: int = 2) -> AsyncIterator[World]:
    kind = LocalMachineType(name="small", memory=150 << 20, count=count)
    cloud = Moody(LocalOptions(machines=(kind,), folder=folder / "cloud"))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    board, journal, events = Switchboard(), Journal(), Events()
    control = Control(context, f"ipc://{folder}/c", board.on_message)
    requests = RequestTable({"m": FirstRouter()}, events, RequestOptions(max_inflight=10))
    tokens = TokenSocket(context, f"ipc://{folder}/t", requests.tokens)
    scripts, planned = Scripts(control.address, cloud), Planned(first)
    made: World | None = None
    controller = Controller(
        (),
        [cloud],
        scripts,
        Launch(argv=agent.command(control.address, grace_s=5.0, logs=folder / "logs")),
        control,
        planned,
        requests,
        events,
        journal,
        ControllerOptions(plan=PlanOptions(), every_s=60.0, start_timeout_s=30.0, drain_timeout_s=10.0),
        tokens_address=tokens.address_of,
        now=lambda: time.monotonic() + (made.later_s if made else 0.0),
    )
    board.requests = requests
    board.connect(controller, None)
    made = World(controller, requests, events)
    made.scripts, made.planned, made.journal, made.cloud = scripts, planned, journal, cloud

    async def tick() -> None:
        while True:
            controller.tick()
            await asyncio.sleep(0.3)

    running = [asyncio.create_task(controller.run()), asyncio.create_task(tick())]
    try:
        yield made
    finally:
        controller.stop()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        pids = made.pids()
        controller.instances.end_all()
        await controller.machines.give_back_all()
        control.close()
        tokens.close()
        context.destroy(0)
        assert [pid for pid in pids if alive(pid)] == [], "left behind"


def run(folder: Path, first: Plan, body: Callable[[World], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with world(folder, first) as made:
            await body(made)

    asyncio.run(asyncio.wait_for(inside(), 90))


def request(id: str, tokens: int) -> GenerateRequest:
    return GenerateRequest(id=id, model="m", prompt_ids=(1,), sampling=Sampling(max_tokens=tokens))


def test_a_plan_comes_up_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        assert len(one.joined()) == 2
        [instance] = one.ready()
        assert [seat.machine_id for seat in instance.layout.seats] != [instance.layout.scheduler_machine] * 2
        await until(lambda: all(process.pid for process in instance.processes.values()), 20)
        assert len({process.pid for process in instance.processes.values()}) == 3
        sink = Sink()
        one.requests.submit(request("r", 4), sink)
        await until(lambda: sink.ended, 20)
        assert sink.tokens == [0, 1, 2, 3]
        assert one.events.changes == [("m-1", "loading"), ("m-1", "ready")]

    run(tmp_path, plan(2, 1, nodes=2), body)


def test_a_killed_worker_fails_its_instance_and_the_request_goes_on(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        sink = Sink()
        one.requests.submit(request("r", 40), sink)
        await until(lambda: len(sink.tokens) >= 3, 20)
        [serving] = [i for i in one.ready() if one.requests.loads().get(i.id)]
        victim = serving.processes[f"{serving.id}/s0n0"].pid
        started = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await until(lambda: serving.state is InstanceState.FAILED, 10)
        assert time.monotonic() - started < 10
        assert "signal 9" in serving.reason
        await until(lambda: sink.ended, 20)
        assert sink.error is None
        assert sink.tokens == list(range(40))
        await until(lambda: len(one.ready()) == 2, 30)
        assert len(one.planned.views) >= 2, "it has planned again"

    run(tmp_path, plan(2, 2), body)


def test_a_lost_machine_is_noticed_and_replaced(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [machine] = one.controller.machines.living()
        os.kill(machine.agent_pid, signal.SIGKILL)
        await until(lambda: machine.state is MachineState.LOST, 6)  # silence takes longer to notice
        assert one.events.lost == [machine.id]
        assert "closed its connection" in machine.reason
        starts = [e.text for e in one.journal.entries if "cannot be reached" in e.text]
        assert not starts, "nothing is started on a machine that is gone"
        assert not len(one.controller.setbacks), "and its loss is no failure of what ran there"
        await until(lambda: one.ready() and machine.id not in one.joined(), 40)

    run(tmp_path, plan(1, 1), body)


def test_over_eaters_are_ended_with_the_reason_and_starting_is_given_up(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        one.scripts.worker_code, one.scripts.gets_ready = EAT, False
        with pytest.raises(EngineError, match=r"its limit is 150 MiB"):
            await asyncio.wait_for(one.controller.up, 60)

    run(tmp_path, plan(1, 1), body)


def test_a_changed_plan_starts_first_and_drains_after(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        one.planned.plan = plan(1, 1)
        one.controller.replan("test")
        await until(lambda: len(one.joined()) == 1, 40)
        assert one.ready()
        one.planned.plan = None
        one.controller.replan("test")
        await until(lambda: any("the running plan stays" in e.text for e in one.journal.entries), 20)
        assert one.ready()

    run(tmp_path, plan(2, 2), body)


def test_a_cloud_that_answers_nothing_for_a_while_ends_nothing(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        one.cloud.fault = CloudError("the API is down")
        for _ in range(2):
            one.controller.replan("test")
            before = len(one.journal.entries)
            await until(
                lambda before=before: any(  # type: ignore[misc]
                    "the API is down" in entry.text for entry in list(one.journal.entries)[before:]
                ),
                20,
            )
        assert one.ready()
        one.cloud.fault = None
        asked = len(one.planned.views)
        one.controller.replan("test")
        await until(lambda: len(one.planned.views) > asked, 20)

    run(tmp_path, plan(1, 1), body)


def test_a_worker_that_cannot_be_launched_fails_its_instance_with_the_reason(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        one.scripts.fault = EngineError("no such interpreter")
        with pytest.raises(EngineError, match="no such interpreter"):
            await asyncio.wait_for(one.controller.up, 40)

    run(tmp_path, plan(1, 1), body)


def test_nobody_is_silent_while_the_coordinator_itself_stood_still(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        one.controller.tick()
        one.later_s = 60.0
        one.controller.tick()
        assert one.ready()
        assert one.joined()
        one.controller.tick()  # and no message in between
        assert not one.joined()
        one.later_s = 0.0

    run(tmp_path, plan(1, 1), body)


def test_a_drained_instance_stays_until_its_last_tokens_have_come(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        await asyncio.wait_for(one.controller.up, 40)
        [instance] = one.ready()
        sink = Sink()
        one.requests.submit(request("r", 30), sink)
        one.controller.instances.unwanted(instance.id)
        one.controller.instances.drained(instance.id)  # faster than the tokens, on a socket of its own
        assert instance.state is InstanceState.DRAINING
        await until(lambda: sink.ended, 20)
        assert (sink.tokens, sink.error) == (list(range(30)), None)
        await until(lambda: instance.state is InstanceState.GONE, 10)

    run(tmp_path, plan(1, 1), body)


def test_a_plan_that_serves_nothing_and_a_refused_one_end_the_start(tmp_path: Path) -> None:
    async def body(one: World) -> None:
        with pytest.raises(InfeasibleError, match="nothing that can be rented"):
            await asyncio.wait_for(one.controller.up, 20)

    run(tmp_path, plan(0, 0), body)

    async def refused(one: World) -> None:
        one.events.refusal = "too dear"
        with pytest.raises(InfeasibleError, match="too dear"):
            await asyncio.wait_for(one.controller.up, 20)
        assert one.joined() == []

    run(tmp_path, plan(1, 1), refused)
