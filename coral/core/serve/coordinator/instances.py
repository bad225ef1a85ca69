"""The instances: scheduler and workers started through the agents, watched, drained, ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from coral.core.operate.lifecycle import InstanceCommand, InstanceEvent, InstanceState, instance_step
from coral.core.operate.reconcile import HeldInstance
from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.core.serve.net.wire import (
    Drain,
    InstanceReady,
    InstanceStats,
    Message,
    ProcessExited,
    RunInstance,
    SchedulerHello,
    StartProcess,
    StopProcess,
)
from coral.errors import CoralError
from coral.hookspecs.engine import Launch
from coral.types.hardware import Domain
from coral.types.placement import Template

STOP_GRACE_S = 3.0
SILENCE_S = 10.0
KEEP_ENDED = 20
SCHEDULER = "scheduler"
ASKED_TO_END = "asked to end"
"""An agent's reason for an exit that a StopProcess brought about."""


class Launches(Protocol):
    """How the processes of an instance are started."""

    def layout(self, instance: str, template: Template, claim: Claim) -> InstanceLayout: ...

    def scheduler(self, layout: InstanceLayout) -> Launch: ...

    def worker(self, layout: InstanceLayout, seat: int, scheduler_address: str) -> Launch: ...


class InstanceOwner(Protocol):
    """Whoever drives the instances."""

    def send_agent(self, machine: str, message: Message) -> bool: ...

    def send_peer(self, peer: Peer, message: Message) -> bool: ...

    def admit(self, one: LiveInstance) -> None: ...

    def stop_admitting(self, one: LiveInstance) -> None: ...

    def move_requests(self, one: LiveInstance, reason: str) -> None: ...

    def load(self, one: LiveInstance) -> int:
        """Requests whose last token has not come yet."""
        ...

    def instance_changed(self, one: LiveInstance, before: InstanceState) -> None: ...

    def replan(self, reason: str) -> None: ...


class LiveProcess(Struct, kw_only=True):
    """A scheduler or worker. `pid` is 0 until it is known; `ended` once it has exited."""

    name: str
    machine: str
    node: str = ""
    pid: int = 0
    ended: bool = False
    code: int | None = None


class LiveInstance:
    def __init__(self, layout: InstanceLayout, template: Template, domain: Domain, claim: Claim) -> None:
        self.layout = layout
        self.template = template
        self.domain = domain
        self.claim = claim
        self.state = InstanceState.PLACED
        self.since = 0.0
        self.heard = 0.0
        self.peer: Peer | None = None
        self.address = ""
        self.processes: dict[str, LiveProcess] = {}
        self.ready: InstanceReady | None = None
        self.stats: InstanceStats | None = None
        self.progress = ""
        self.reason = ""
        self.drained = False
        """Its scheduler has said so; last tokens, which come another way, may still be under way."""

    @property
    def id(self) -> str:
        return self.layout.spec.instance

    @property
    def model(self) -> str:
        return self.layout.spec.model

    @property
    def holding(self) -> bool:
        """Whether its devices are still taken."""
        ended = self.state in (InstanceState.GONE, InstanceState.FAILED)
        return not ended or any(not process.ended for process in self.processes.values())


class Instances:
    """Called from the event loop only."""

    def __init__(
        self,
        launches: Launches,
        owner: InstanceOwner,
        journal: Journal,
        *,
        tokens_address: str,
        start_timeout_s: float,
        drain_timeout_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launches = launches
        self._owner = owner
        self._journal = journal
        self._tokens_address = tokens_address
        self._start_timeout_s = start_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._now = now
        self._all: dict[str, LiveInstance] = {}
        self._count: dict[str, int] = {}
        self._ending = False

    def all(self) -> Mapping[str, LiveInstance]:
        return self._all

    def held(self, loads: Mapping[str, int]) -> list[HeldInstance]:
        return [
            HeldInstance(
                id=one.id,
                template=one.template,
                domain=one.domain,
                state=one.state,
                claim=one.claim,
                load=loads.get(one.id, 0),
                holding=one.holding,
            )
            for one in self._all.values()
        ]

    def peers(self) -> list[Peer]:
        return [one.peer for one in self._all.values() if one.peer is not None and one.holding]

    def by_peer(self, peer: Peer) -> LiveInstance | None:
        return next((one for one in self._all.values() if one.peer == peer), None)

    # ------------------------------------------------------------ what to do

    def start(self, template: Template, domain: Domain, claim: Claim) -> LiveInstance:
        """Ask for its scheduler; its workers follow when that has said hello."""
        number = self._count[template.model] = self._count.get(template.model, 0) + 1
        layout = self._launches.layout(f"{template.model}-{number}", template, claim)
        one = LiveInstance(layout, template, domain, claim)
        one.since = one.heard = self._now()
        self._all[one.id] = one
        self._journal.say("instance", f"{one.id} starts: {template.placement.picture()}")
        self._step(one, InstanceEvent.STARTED)
        launch = self._launches.scheduler(layout)
        self._start_process(one, SCHEDULER, layout.scheduler_machine, launch)
        return one

    def unwanted(self, instance: str) -> None:
        self._step(self._all[instance], InstanceEvent.UNWANTED)

    def end_all(self) -> None:
        """The system ends: no draining, and what ends from now on has not failed."""
        self._ending = True
        for one in list(self._all.values()):
            self._step(one, InstanceEvent.UNWANTED)
            if one.state is InstanceState.DRAINING:
                self._step(one, InstanceEvent.DRAINED)

    # ------------------------------------------------------------ what happens

    def scheduler_hello(self, peer: Peer, hello: SchedulerHello) -> None:
        one = self._all.get(hello.instance)
        if one is None or hello.generation != one.layout.spec.generation:
            return
        one.peer, one.address, one.heard = peer, hello.address, self._now()
        if one.state is not InstanceState.LOADING or len(one.processes) > 1:
            return
        self._owner.send_peer(peer, RunInstance(spec=one.layout.spec, tokens_address=self._tokens_address))
        for index, seat in enumerate(one.layout.seats):
            try:
                launch = self._launches.worker(one.layout, index, hello.address)
            except CoralError as error:
                self._break(one, f"worker {seat.spec.node} cannot be started: {error}")
                return
            self._start_process(one, seat.spec.node, seat.machine_id, launch, seat.limit_bytes)

    def heard(self, peer: Peer) -> None:
        if (one := self.by_peer(peer)) is not None:
            one.heard = self._now()

    def is_ready(self, ready: InstanceReady) -> None:
        if (one := self._all.get(ready.instance)) is not None:
            one.ready = ready
            seconds = self._now() - one.since
            if one.state is InstanceState.LOADING:
                self._journal.say(
                    "instance", f"{one.id} is ready after {seconds:.1f} s, KV for {ready.kv_tokens:,} tokens"
                )
            self._step(one, InstanceEvent.READY)

    def made_progress(self, instance: str, text: str) -> None:
        if (one := self._all.get(instance)) is not None and one.progress != text:
            one.progress = text
            self._journal.say("instance", f"{instance}: {text}")

    def drained(self, instance: str) -> None:
        if (one := self._all.get(instance)) is not None:
            one.drained = True
            self._end_drained(one)

    def broken(self, instance: str, reason: str) -> None:
        if (one := self._all.get(instance)) is not None:
            self._break(one, reason)

    def process_started(self, name: str, pid: int) -> None:
        if (found := self._process(name)) is not None:
            found[1].pid = pid

    def process_exited(self, exited: ProcessExited) -> None:
        if (found := self._process(exited.process)) is None:
            return
        one, process = found
        process.ended, process.code = True, exited.code
        process.pid = exited.pid or process.pid
        what = "scheduler" if process.name.endswith(f"/{SCHEDULER}") else f"worker {process.node}"
        why = exited.reason or _words(exited.code)
        tail = f"\n{exited.tail}" if exited.tail and not exited.reason else ""
        text = f"{what} ended: {why}{tail}"
        if one.state is InstanceState.FAILED and exited.reason != ASKED_TO_END and not self._ending:
            one.reason = f"{one.reason}; {text}"  # its peers noticed before its agent did
            self._journal.say("instance", f"{one.id}: {text}", fault=True)
        self._break(one, text)
        if not one.holding:
            self._owner.instance_changed(one, one.state)  # its devices are free now

    def machine_gone(self, machine: str, reason: str) -> None:
        """What ran there has ended with it."""
        for one in list(self._all.values()):
            if machine not in one.claim.machines:
                continue
            for process in one.processes.values():
                if process.machine == machine:
                    process.ended = True
            self._break(one, reason)

    def tick(self) -> None:
        now = self._now()
        for one in list(self._all.values()):
            self._end_drained(one)
            age = now - one.since
            if one.state is InstanceState.LOADING and age > self._start_timeout_s:
                seen = one.progress or ("its workers" if one.peer else "its scheduler")
                self._break(one, f"not ready within {self._start_timeout_s:g} s (last: {seen})")
            elif one.state is InstanceState.DRAINING and age > self._drain_timeout_s:
                self._break(one, f"did not drain within {self._drain_timeout_s:g} s")
            elif one.state is InstanceState.READY and now - one.heard > SILENCE_S:
                self._break(one, f"its scheduler has been silent for {SILENCE_S:g} s")

    # ------------------------------------------------------------ inside

    def _end_drained(self, one: LiveInstance) -> None:
        if one.state is InstanceState.DRAINING and one.drained and not self._owner.load(one):
            self._step(one, InstanceEvent.DRAINED)

    def _break(self, one: LiveInstance, reason: str) -> None:
        if self._ending or one.state in (InstanceState.GONE, InstanceState.FAILED):
            return
        one.reason = reason
        self._journal.say("instance", f"{one.id} has failed: {reason}", fault=True)
        self._step(one, InstanceEvent.BROKEN)

    def _step(self, one: LiveInstance, event: InstanceEvent) -> None:
        before = one.state
        one.state, commands = instance_step(one.state, event)
        if one.state is before:
            return
        one.since = self._now()
        for command in commands:
            self._do(one, command)
        self._owner.instance_changed(one, before)
        self._forget_ended()

    def _do(self, one: LiveInstance, command: InstanceCommand) -> None:
        match command:
            case InstanceCommand.ADMIT:
                self._owner.admit(one)
            case InstanceCommand.STOP_ADMITTING:
                self._owner.stop_admitting(one)
            case InstanceCommand.DRAIN:
                if one.peer is None or not self._owner.send_peer(one.peer, Drain()):
                    self._break(one, "its scheduler cannot be told to drain")
            case InstanceCommand.MOVE_REQUESTS:
                self._owner.move_requests(one, one.reason)
            case InstanceCommand.END_PROCESSES:
                for process in one.processes.values():
                    stop = StopProcess(process=process.name, grace_s=STOP_GRACE_S)
                    if not process.ended and not self._owner.send_agent(process.machine, stop):
                        process.ended = True  # its agent is gone, and it with the agent
            case InstanceCommand.REPLAN:
                self._owner.replan(f"instance {one.id} has failed")

    def _start_process(
        self, one: LiveInstance, name: str, machine: str, launch: Launch, limit_bytes: int = 0
    ) -> None:
        if one.state is not InstanceState.LOADING:
            return  # it has failed meanwhile: what is started now would be nobody's
        node = "" if name == SCHEDULER else name
        full = f"{one.id}/{name}" if name == SCHEDULER else name
        start = StartProcess(
            process=full,
            argv=launch.argv,
            env=launch.env,
            memory_bytes=limit_bytes,
            preload=launch.preload,
        )
        one.processes[full] = LiveProcess(name=full, machine=machine, node=node)
        if not self._owner.send_agent(machine, start):
            one.processes[full].ended = True
            self._break(one, f"the agent of machine {machine} cannot be reached")

    def _process(self, name: str) -> tuple[LiveInstance, LiveProcess] | None:
        one = self._all.get(name.rpartition("/")[0])
        process = one.processes.get(name) if one else None
        return (one, process) if one and process else None

    def _forget_ended(self) -> None:
        ended = [one for one in self._all.values() if not one.holding]
        for one in ended[: max(0, len(ended) - KEEP_ENDED)]:
            del self._all[one.id]


def _words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"
