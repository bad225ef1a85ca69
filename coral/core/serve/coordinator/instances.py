"""The instances: scheduler and workers started through the agents, watched, drained, ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from coral.core.operate.lifecycle import InstanceCommand, InstanceEvent, InstanceState, instance_step
from coral.core.operate.reconcile import HeldInstance
from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance, LiveProcess
from coral.core.serve.coordinator.memory import Memory
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.core.serve.net.wire import (
    AgentHello,
    Drain,
    InstanceReady,
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
APART = "it ended while its agent and the coordinator were apart"
ASKED_TO_END = "asked to end"
"""An agent's reason for an exit that a StopProcess brought about."""


class Launches(Protocol):
    """How the processes of an instance are started."""

    def layout(self, instance: str, template: Template, claim: Claim) -> InstanceLayout: ...

    def fingerprint(self, model: str) -> str:
        """Of all in the config that a running instance of the model cannot change."""
        ...

    def scheduler(self, layout: InstanceLayout) -> Launch: ...

    def worker(self, layout: InstanceLayout, seat: int, scheduler_address: str) -> Launch: ...


class InstanceOwner(Protocol):
    """Whoever drives the instances."""

    def send_agent(self, machine: str, message: Message) -> bool: ...

    def may_return(self, machine: str) -> bool:
        """Its agent cannot be told yet, and may come back."""
        ...

    def send_peer(self, peer: Peer, message: Message) -> bool: ...

    def admit(self, one: LiveInstance) -> None: ...

    def stop_admitting(self, one: LiveInstance) -> None: ...

    def move_requests(self, one: LiveInstance, reason: str) -> None: ...

    def load(self, one: LiveInstance) -> int:
        """Requests whose last token has not come yet."""
        ...

    def instance_changed(self, one: LiveInstance, before: InstanceState) -> None: ...

    def replan(self, reason: str) -> None: ...


class Instances:
    """Called from the event loop only."""

    def __init__(
        self,
        launches: Launches,
        owner: InstanceOwner,
        journal: Journal,
        *,
        tokens_address: Callable[[Peer], str],
        start_timeout_s: float,
        drain_timeout_s: float,
        return_timeout_s: float = 30.0,
        memory: Memory | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """An instance of an earlier coordinator comes back within `return_timeout_s`, or not at all.
        `tokens_address`: where the instance of that peer pushes tokens."""
        self._launches = launches
        self._owner = owner
        self._journal = journal
        self._tokens_address = tokens_address
        self._start_timeout_s = start_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._return_timeout_s = return_timeout_s
        self._memory = memory or Memory()
        self._now = now
        self._all: dict[str, LiveInstance] = {}
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

    def machine_of(self, process: str) -> str | None:
        found = self._process(process)
        return found[1].machine if found else None

    # ------------------------------------------------------------ what to do

    def start(self, template: Template, domain: Domain, claim: Claim) -> LiveInstance:
        """Ask for its scheduler; its workers follow when that has said hello."""
        name = f"{template.model}-{self._memory.number(template.model)}"
        one = LiveInstance(self._launches.layout(name, template, claim), template, domain, claim)
        one.fingerprint = self._launches.fingerprint(template.model)
        one.since = one.heard = self._now()
        self._all[one.id] = one
        self._journal.say("instance", f"{one.id} starts: {template.placement.picture()}")
        self._step(one, InstanceEvent.STARTED)
        launch = self._launches.scheduler(one.layout)
        self._start_process(one, SCHEDULER, one.layout.scheduler_machine, launch)
        self._memory.instance(one)
        return one

    def adopt(self, one: LiveInstance) -> None:
        """An earlier coordinator has started it. Where it is to go on (it is LOADING) it is ready once its
        scheduler has come back and said so; of one that is GONE the processes end."""
        one.adopted = True
        one.since = one.heard = self._now()
        if one.holding:
            self._all[one.id] = one
        self._memory.instance(one)

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
        if one.state is not InstanceState.LOADING:
            return
        complete = one.complete and one.adopted
        if len(one.processes) > 1 and not complete:
            return
        address = self._tokens_address(peer)
        self._owner.send_peer(peer, RunInstance(spec=one.layout.spec, tokens_address=address))
        if complete:
            return
        for index, seat in enumerate(one.layout.seats):
            try:
                launch = self._launches.worker(one.layout, index, hello.address)
            except CoralError as error:
                self._break(one, f"worker {seat.spec.node} cannot be started: {error}")
                return
            self._start_process(one, seat.spec.node, seat.machine_id, launch, seat.limit_bytes)
        self._memory.instance(one)

    def agent_hello(self, hello: AgentHello) -> None:
        """What an agent runs is compared with what we know: what nobody knows is ended, and what is gone
        without a word, since coordinator or agent were away, is noticed."""
        running = {status.process: status.pid for status in hello.running}
        known: set[str] = set()
        for one in list(self._all.values()):
            for process in list(one.processes.values()):
                if process.machine != hello.machine or process.ended:
                    continue
                known.add(process.name)
                if process.name in running:
                    process.pid = running[process.name]
                    if one.ended:
                        self._end_process(process)
                elif process.pid or one.adopted:  # else it is only being started
                    exited = ProcessExited(process=process.name, pid=process.pid, code=0, reason=APART)
                    self.process_exited(exited)
        for name in running.keys() - known:
            self._memory.seen(name.rpartition("/")[0])
            self._journal.say("instance", f"{name} on {hello.machine} is nobody's, and is ended")
            self._owner.send_agent(hello.machine, StopProcess(process=name, grace_s=STOP_GRACE_S))

    def heard(self, peer: Peer) -> None:
        if (one := self.by_peer(peer)) is not None:
            one.heard = self._now()

    def is_ready(self, ready: InstanceReady) -> None:
        if (one := self._all.get(ready.instance)) is not None:
            one.ready = ready
            seconds = self._now() - one.since
            if one.state is InstanceState.LOADING:
                how = "is back" if one.adopted else "is ready"
                self._journal.say(
                    "instance", f"{one.id} {how} after {seconds:.1f} s, KV for {ready.kv_tokens:,} tokens"
                )
                self._step(one, InstanceEvent.READY)  # else it says so again: it had said hello twice

    def made_progress(self, instance: str, text: str) -> None:
        if (one := self._all.get(instance)) is not None and one.progress != text:
            one.progress = text
            self._journal.say("instance", f"{instance}: {text}")

    def drained(self, instance: str) -> None:
        one = self._all.get(instance)
        if one is not None and one.state is InstanceState.DRAINING:  # else an earlier coordinator had asked
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
        self._memory.instance(one)
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
            self._memory.instance(one)

    def tick(self) -> None:
        now = self._now()
        for one in list(self._all.values()):
            self._end_drained(one)
            age = now - one.since
            if one.state is InstanceState.LOADING and one.adopted and one.peer is None:
                if age > self._return_timeout_s:
                    self._break(one, f"its scheduler has not come back within {self._return_timeout_s:g} s")
            elif one.state is InstanceState.LOADING and age > self._start_timeout_s:
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
        self._memory.instance(one)
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
                    self._end_process(process)
            case InstanceCommand.REPLAN:
                self._owner.replan(f"instance {one.id} has failed")

    def _end_process(self, process: LiveProcess) -> None:
        stop = StopProcess(process=process.name, grace_s=STOP_GRACE_S)
        if process.ended or self._owner.send_agent(process.machine, stop):
            return
        if not self._owner.may_return(process.machine):
            process.ended = True  # its agent is gone, and it with the agent

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
