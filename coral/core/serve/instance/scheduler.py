"""The scheduler process: brings an instance up, then carries out what its state machine decides."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

import zmq

from coral.core.operate.command import Command
from coral.core.operate.instance_state import InstanceState
from coral.core.serve.instance import identity
from coral.core.serve.instance.nodes import NodeLost, Nodes
from coral.core.serve.instance.outgoing import Outgoing
from coral.core.serve.instance.startup import Startup
from coral.core.serve.net import wire
from coral.core.serve.net.keys import ProcessKeys
from coral.core.serve.net.plane import Plane
from coral.core.serve.net.transport import Dealer
from coral.types.reservation import ReservationRule
from coral.types.stage import EngineStats, InstanceSpec

log = logging.getLogger("coral.scheduler")

BEAT_S = 1.0
POLL_MS = 200
EARLY = 1_000
"""Workers that may dial before the coordinator has said who belongs here."""
EXIT_FAILED = 1
EXIT_ORPHANED = 3


@dataclass(frozen=True, slots=True)
class SchedulerArguments:
    coordinator: str
    instance: str
    generation: int
    host: str = "127.0.0.1"
    sockets: str = ""
    keys: ProcessKeys | None = None
    start_timeout_s: float = 600.0
    silence_s: float = 8.0
    grace_s: float = 30.0


class Scheduler:
    def __init__(self, arguments: SchedulerArguments) -> None:
        self._arguments = arguments
        self._instance = arguments.instance
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._plane = plane = Plane(
            self._context, arguments.keys, host=arguments.host, sockets=arguments.sockets
        )
        self._coordinator = Dealer(
            self._context,
            arguments.coordinator,
            identity=identity(arguments.instance, arguments.generation, plane.ticket),
            keys=plane.coordinator,
        )
        self._nodes = Nodes(self._context, plane, arguments.silence_s)
        self._spec: InstanceSpec | None = None
        self._tokens_address = ""
        self._startup: Startup | None = None
        self._state: InstanceState | None = None
        self._outgoing: Outgoing | None = None
        self._early: dict[str, wire.WorkerHello] = {}
        self._stats: dict[str, EngineStats] = {}
        self._asked: set[str] = set()
        """Nodes that have not answered the last `AskStats`."""
        self._sent_stats: wire.InstanceStats | None = None
        self._started = self._heard = self._beaten = time.monotonic()
        self._exit: int | None = None
        self._why = ""

    def run(self) -> int:
        """Until told to end, failed or orphaned; all workers are told to end before it returns."""
        signal.signal(signal.SIGTERM, self._terminate)
        poller = zmq.Poller()
        poller.register(self._coordinator.socket, zmq.POLLIN)
        poller.register(self._nodes.socket, zmq.POLLIN)
        self._say_hello()
        try:
            while self._exit is None:
                poller.poll(POLL_MS)
                try:
                    self._turn(time.monotonic())
                except NodeLost as lost:
                    said = self._nodes.last_words(lost.node, time.monotonic())
                    self._fail(said or lost.reason, lost.node)
        finally:
            self._nodes.shut_down(self._why or "the scheduler ends")
            self._nodes.close()
            self._coordinator.close()
            self._plane.close()
            self._context.term()
        log.info("%s ends: %s", self._instance, self._why)
        return self._exit

    def _turn(self, now: float) -> None:
        self._coordinator.flush()
        for message in self._coordinator.drain():
            self._heard = now
            self._from_coordinator(message)
        for node, message in self._nodes.drain(now):
            self._from_node(node, message, now)
        if now - self._beaten >= BEAT_S:
            self._beaten = now
            self._tick(now)

    def _tick(self, now: float) -> None:
        silent_s = now - self._heard
        if self._spec is None or silent_s > 3 * BEAT_S:
            self._say_hello()
        else:
            self._coordinator.send(wire.Heartbeat(at_s=time.time()))
        self._nodes.beat(now)
        lost = self._nodes.lost(now)
        if lost is not None:
            self._fail(lost[1], lost[0])
        elif silent_s > self._arguments.grace_s:
            self._end(EXIT_ORPHANED, f"the coordinator has been silent for {silent_s:.0f} s")
        elif self._state is not None:
            self._carry_out(self._state.expire(time.time()))
            self._send_stats()
        elif self._startup is not None and now - self._started > self._arguments.start_timeout_s:
            limit = self._arguments.start_timeout_s
            self._fail(f"not ready within {limit:g} s: {self._startup.missing()}", self._startup.suspect())

    def _say_hello(self) -> None:
        hello = wire.SchedulerHello(
            instance=self._instance,
            generation=self._arguments.generation,
            pid=os.getpid(),
            address=self._nodes.address,
        )
        self._coordinator.send(hello)

    # ------------------------------------------------------------ coordinator

    def _from_coordinator(self, message: wire.AnyMessage) -> None:
        match message:
            case wire.Submit():
                if self._state is None:
                    refused = wire.RequestRefused(
                        request=message.request.id, status=503, reason="the instance is not ready"
                    )
                    self._coordinator.send(refused)
                else:
                    self._carry_out(self._state.submit(message.request, message.leg))
            case wire.Abort() if self._state is not None:
                self._carry_out(self._state.abort(message.requests))
            case wire.HandOver() if self._state is not None:
                self._carry_out(self._state.hand_over(message.request, message.to))
            case wire.GoOn() if self._state is not None:
                self._carry_out(self._state.go_on(message.request, message.tokens))
            case wire.RunInstance():
                self._run_instance(message)
            case wire.Drain():
                if self._state is not None:
                    self._carry_out(self._state.drain())
                else:
                    self._coordinator.send(wire.Drained(instance=self._instance))
            case wire.AskStats():
                self._asked = set(self._stats)
                for node in self._stats:
                    self._nodes.send(node, message)
                if not self._asked:
                    self._send_stats(always=True)
            case wire.Shutdown():
                self._end(0, message.reason or "told to end")
            case wire.Heartbeat() | wire.Abort():
                pass
            case _:
                log.warning("%s was sent %s by the coordinator", self._instance, type(message).__name__)

    def _run_instance(self, message: wire.RunInstance) -> None:
        if self._spec is not None:
            self._run_again(message)
            return
        self._spec, self._tokens_address = message.spec, message.tokens_address
        self._startup = Startup(message.spec)
        self._started = time.monotonic()
        early, self._early = self._early, {}
        log.info(
            "%s: %d nodes in %d stages", self._instance, len(self._startup.specs), len(message.spec.stages)
        )
        for node, hello in early.items():
            self._hello(node, hello, self._started)

    def _run_again(self, message: wire.RunInstance) -> None:
        """The coordinator has come back: nobody waits for what is in flight, and it may have moved."""
        if self._state is None or self._startup is None:
            return
        self._carry_out(self._state.abort(self._state.in_flight()))
        if message.tokens_address != self._tokens_address:
            self._tokens_address = message.tokens_address
            for node in self._startup.specs:
                self._wire(self._startup, node)
        self._say_ready(self._state)

    # ------------------------------------------------------------ workers

    def _from_node(self, node: str, message: wire.AnyMessage, now: float) -> None:
        startup = self._startup
        if isinstance(message, wire.WorkerHello):
            self._hello(node, message, now)
        elif startup is None or node not in startup.specs:
            self._nodes.stranger(node, message)
        elif isinstance(message, wire.WorkerFailed):
            self._fail(message.reason, node)
        elif self._state is not None:
            self._serving(self._state, node, message)
        else:
            self._starting(startup, node, message)

    def _hello(self, node: str, message: wire.WorkerHello, now: float) -> None:
        startup = self._startup
        if startup is None:
            if len(self._early) < EARLY:
                self._early[node] = message
            return
        if node not in startup.specs or message.node != node:
            self._nodes.stranger(node, message)
            self._nodes.dismiss(node, f"it is no node of {self._instance}")
            return
        if node in startup.addresses:
            self._fail(f"node {node} has started anew and lost what it held", node)
            return
        startup.addresses[node] = message.data_address
        self._nodes.joined(node, now)
        spec = startup.specs[node]
        self._nodes.send(node, wire.LoadStage(spec=spec, tokens_address=self._tokens_address))
        self._say_progress(startup, f"{node} loads layers [{spec.first_layer}, {spec.end_layer})")

    def _starting(self, startup: Startup, node: str, message: wire.AnyMessage) -> None:
        match message:
            case wire.StageLoaded():
                startup.capacities[node] = message.capacity
                self._stats[node] = message.stats
                self._say_progress(startup, f"{node} loaded in {message.stats.load_seconds:.1f} s")
                if startup.all_loaded:
                    for one in startup.specs:
                        self._wire(startup, one)
            case wire.Reaching():
                startup.unreached[node] = message.unreached
            case wire.Wired():
                startup.wired.add(node)
                if startup.all_wired and self._spec is not None:
                    self._begin(self._spec, startup)
            case wire.WorkerStats():
                self._heard_stats(node, message)
            case _:
                log.warning("%s: %s sent %s while starting", self._instance, node, type(message).__name__)

    def _wire(self, startup: Startup, node: str) -> None:
        address = self._tokens_address if startup.specs[node].is_last else ""
        peers, senders = dict(startup.peers(node)), startup.senders(node)
        self._nodes.send(node, wire.Wire(peers=peers, senders=senders, tokens_address=address))

    def _begin(self, spec: InstanceSpec, startup: Startup) -> None:
        stages = [[(stage.node, weight) for stage, weight in nodes] for nodes in spec.stages]
        self._state = InstanceState(
            stages,
            startup.capacities,
            ReservationRule(expected_output_tokens=spec.expected_output_tokens),
            max_model_len=spec.max_model_len,
            max_waiting=spec.max_waiting,
            kv_lease_s=spec.kv_lease_s,
        )
        self._outgoing = Outgoing(spec, startup)
        self._say_ready(self._state)

    def _serving(self, state: InstanceState, node: str, message: wire.AnyMessage) -> None:
        match message:
            case wire.Tokens():
                self._carry_out(state.tokens(message.tokens))
            case wire.SequenceOpened():
                self._carry_out(state.opened(node, message.request, message.attempt, message.error))
            case wire.SequencesReleased():
                self._carry_out(state.released(node, message.sequences))
            case wire.SequenceFailed():
                self._carry_out(state.sequence_failed(node, message.request, message.attempt, message.reason))
            case wire.KvSent():
                self._carry_out(state.kv_sent(node, message.request, message.attempt, message.destination))
            case wire.KvArrived():
                self._carry_out(state.kv_arrived(node, message.request, message.attempt, message.tokens))
            case wire.WorkerStats():
                self._heard_stats(node, message)
            case wire.Wired():
                pass  # told a new address of the coordinator
            case _:
                log.warning("%s: %s sent %s", self._instance, node, type(message).__name__)

    # ------------------------------------------------------------ saying and ending

    def _carry_out(self, commands: Iterable[Command]) -> None:
        assert self._outgoing is not None  # made with the state
        for command in commands:
            node, message = self._outgoing.message(command)
            if node:
                self._nodes.send(node, message)
            else:
                self._coordinator.send(message)

    def _say_progress(self, startup: Startup, text: str) -> None:
        progress = wire.InstanceProgress(
            instance=self._instance, loaded=len(startup.capacities), nodes=len(startup.specs), text=text
        )
        self._coordinator.send(progress)

    def _say_ready(self, state: InstanceState) -> None:
        assert self._startup is not None  # there is a state
        self._coordinator.send(
            wire.InstanceReady(
                instance=self._instance,
                kv_tokens=state.kv_tokens,
                max_request_tokens=state.max_request_tokens,
                capacities=self._startup.capacities,
            )
        )

    def _heard_stats(self, node: str, message: wire.WorkerStats) -> None:
        """Whoever asked for stats gets them when every node has answered."""
        self._stats[node] = message.stats
        if node in self._asked:
            self._asked.discard(node)
            if not self._asked:
                self._send_stats(always=True)

    def _send_stats(self, *, always: bool = False) -> None:
        state = self._state
        stats = wire.InstanceStats(
            instance=self._instance,
            running=state.running if state else 0,
            waiting=state.waiting if state else 0,
            preemptions=state.preemptions if state else 0,
            nodes=dict(self._stats),
            picks=dict(state.dispatcher.picks) if state else {},
        )
        if always or stats != self._sent_stats:
            self._sent_stats = stats
            self._coordinator.send(stats)

    def _fail(self, reason: str, node: str = "") -> None:
        """Nothing more can be served here: say so, name all that is lost, and end."""
        if self._exit is not None:
            return
        self._end(EXIT_FAILED, reason)
        self._coordinator.send(wire.InstanceFailed(instance=self._instance, reason=reason, node=node))
        if self._state is not None:
            self._carry_out(self._state.node_failed(reason))

    def _end(self, code: int, why: str) -> None:
        if self._exit is None:
            self._exit, self._why = code, why

    def _terminate(self, _signal: int, _frame: FrameType | None) -> None:
        self._end(0, "terminated")
