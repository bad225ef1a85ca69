"""The worker process: dial the scheduler, load a stage, connect, then receive, step, send, for ever."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import zmq

from coral.core.plugins import load_plugins
from coral.core.serve.net.channel import Channel, ReceivedKv
from coral.core.serve.net.keys import ProcessKeys
from coral.core.serve.net.messages.data import FedToken, Rows, RowsPart, Tokens
from coral.core.serve.net.paths import Paths
from coral.core.serve.net.plane import Plane
from coral.core.serve.net.torch_groups import maker
from coral.core.serve.net.transport import Dealer, Push
from coral.core.serve.net.wire import (
    AnyMessage,
    AskStats,
    ExtendSequence,
    Heartbeat,
    LoadStage,
    Message,
    OpenSequence,
    Reaching,
    ReleaseSequences,
    ResumeSequence,
    SendKv,
    Shutdown,
    StageLoaded,
    Wire,
    Wired,
    WorkerFailed,
    WorkerHello,
    WorkerStats,
    encode,
)
from coral.core.serve.net.zmq_channel import ZmqChannel
from coral.core.serve.worker.beat import Beat
from coral.core.serve.worker.first_stage import FirstStage
from coral.core.serve.worker.later_stage import LaterStage
from coral.core.serve.worker.stage import StageAtWork
from coral.errors import CoralError, ProtocolError
from coral.hookspecs.engine import StageRunner
from coral.types.request import Token
from coral.types.stage import Buffer

log = logging.getLogger("coral.worker")

IDLE_MS = 250
STATS_S = 1.0
REACHING_S = 1.0


@dataclass(frozen=True, slots=True)
class WorkerArguments:
    scheduler: str
    node: str
    plugin_paths: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    sockets: str = ""
    keys: ProcessKeys | None = None
    channel: str = "zmq"
    """How payloads go between workers: `zmq`, `gloo`, `nccl`."""
    grace_s: float = 30.0
    step_limit_s: float = 120.0


class WorkerProcess:
    def __init__(self, arguments: WorkerArguments) -> None:
        self._node = arguments.node
        self._plugin_paths = arguments.plugin_paths
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._plane = plane = Plane(
            self._context, arguments.keys, host=arguments.host, sockets=arguments.sockets
        )
        self._control = Dealer(self._context, arguments.scheduler, identity=arguments.node, keys=plane.client)
        self._beat = Beat(
            self._context,
            arguments.scheduler,
            plane.client,
            arguments.node,
            grace_s=arguments.grace_s,
            step_limit_s=arguments.step_limit_s,
        )
        self._beat.start()  # what comes may take long: it imports torch
        self._channel: Channel = ZmqChannel(
            self._context,
            node=arguments.node,
            bind=plane.address(f"w{os.getpid()}"),
            server_keys=plane.server,
            client_keys=plane.client,
            paths=self._paths(arguments.channel, arguments.host),
        )
        self._poller = zmq.Poller()
        self._poller.register(self._control.socket, zmq.POLLIN)
        self._runner: StageRunner | None = None
        self._loaded: StageAtWork | None = None
        self._stage: StageAtWork | None = None
        self._tokens: Push | None = None
        self._tokens_address = ""
        self._instance = ""
        self._ending = ""
        self._watched: list[zmq.Socket[bytes] | int] = []
        self._more_kv = False
        """Some KV could be sent on at once."""
        self._connecting = False
        self._reached_at = 0.0
        self._stats_due = False
        self._stats_at = 0.0
        self._connected_at = 0.0
        self._waited_s = 0.0

    def _paths(self, channel: str, host: str) -> Paths | None:
        """What payloads go by; None where they go with their headers. Raises CoralError where this process
        lacks what the channel needs; the scheduler has been told then."""
        if channel == "zmq":
            return None
        try:
            return Paths(maker(channel, host))
        except CoralError as error:
            self._control.send(WorkerFailed(node=self._node, reason=str(error)))
            self._beat.stop()
            self._control.close()
            self._plane.close()
            self._context.term()
            raise

    def run(self) -> int:
        """Until told to end, orphaned or failed. The exit status: 0 when told to end."""
        self._beat.introduced = True
        self._control.send(WorkerHello(node=self._node, pid=os.getpid(), data_address=self._channel.address))
        try:
            while not self._ending and not self._beat.ended:
                self._turn()
        except Exception as error:
            log.exception("%s has failed", self._node)
            reason = str(error) if isinstance(error, CoralError) else f"{type(error).__name__}: {error}"
            self._control.send(WorkerFailed(node=self._node, reason=reason))
            return 1
        finally:
            self._close()
        log.info("%s ends: %s", self._node, self._ending or self._beat.ended)
        return 0

    def _turn(self) -> None:
        """Take what has arrived; run one step if there is something to run and room for its results."""
        if not self._can_step() and not self._more_kv:
            self._watch()
            began = time.monotonic()
            self._poller.poll(IDLE_MS)
            if self._stage is not None:
                self._waited_s += time.monotonic() - began
        for message in self._control.drain():
            self._obey(message)
        if self._stage is not None:
            for received in self._channel.receive():
                if isinstance(received, ReceivedKv):
                    self._stage.take_kv(received)
                else:
                    self._stage.arrive(received)
            if self._connecting:
                self._connect(time.monotonic())
            if self._can_step():
                self._beat.step_since = time.monotonic()
                self._stage.step()
                self._beat.step_since = 0.0
                self._stats_due = True
            self._more_kv = self._stage.hand_over(time.monotonic())
        if self._stats_due and self._runner is not None:
            now = time.monotonic()
            if now - self._stats_at >= STATS_S:
                self._stats_at, self._stats_due = now, False
                self._send_stats()

    def _watch(self) -> None:
        """Wake up for whatever arrives on the channel; its sockets come and go."""
        sockets = list(self._channel.sockets) if self._stage is not None else []
        if sockets != self._watched:
            for socket in self._watched:
                self._poller.unregister(socket)
            for socket in sockets:
                self._poller.register(socket, zmq.POLLIN)
            self._watched = sockets

    def _can_step(self) -> bool:
        if self._stage is None or not self._stage.ready or not self._control.flush():
            return False
        if self._tokens is not None and not self._tokens.flush():
            return False
        return self._channel.may_send()

    # ------------------------------------------------------------ control

    def _obey(self, message: AnyMessage) -> None:
        match message:
            case OpenSequence():
                self._control.send(self._at_work.open(message))
                self._stats_due = True
            case ExtendSequence():
                failed = self._at_work.extend(message)
                if failed is not None:
                    self._control.send(failed)
            case ReleaseSequences():
                self._at_work.release(message)
                self._stats_due = True
            case SendKv():
                self._at_work.send_kv(message, time.monotonic())
            case ResumeSequence():
                answer = self._at_work.resume(message)
                if answer is not None:
                    self._control.send(answer)
            case LoadStage():
                self._load(message)
            case Wire():
                self._wire(message)
            case AskStats():
                self._send_stats()
            case Shutdown():
                self._ending = message.reason or "told to end"
            case Heartbeat():
                pass
            case _:
                log.warning("%s was sent %s, which no worker takes", self._node, type(message).__name__)

    @property
    def _at_work(self) -> StageAtWork:
        if self._stage is None:
            raise ProtocolError(f"{self._node} was given a sequence before it was connected")
        return self._stage

    def _load(self, message: LoadStage) -> None:
        spec = message.spec
        if spec.node != self._node or self._runner is not None:
            raise ProtocolError(f"{self._node} was told to load the stage of {spec.node}, or a second one")
        log.info("%s loads layers [%d, %d) of %s", self._node, spec.first_layer, spec.end_layer, spec.model)
        self._runner = load_plugins(self._plugin_paths).load_stage(spec)
        self._instance, self._tokens_address = spec.instance, message.tokens_address
        self._channel.join(spec.instance, spec.generation)
        if spec.is_last:
            self._push_tokens_to(message.tokens_address)
        stage = FirstStage if spec.is_first else LaterStage
        self._loaded = stage(spec, self._runner, self, self._channel)
        self._control.send(
            StageLoaded(node=self._node, capacity=self._runner.capacity(), stats=self._runner.stats())
        )

    def _wire(self, message: Wire) -> None:
        if self._runner is None:
            raise ProtocolError(f"{self._node} was told its peers before its stage was loaded")
        self._channel.connect(message.peers, message.senders)
        if self._stage is None:
            self._stage, self._connected_at = self._loaded, time.monotonic()
        if message.tokens_address and self._tokens is not None:
            self._push_tokens_to(message.tokens_address)
        self._connecting = True

    def _connect(self, now: float) -> None:
        """Say that all peers are reached, or, at times, which are not."""
        unreached = tuple(self._channel.unreached)
        if not unreached:
            self._connecting = False
            self._control.send(Wired(node=self._node))
        elif now - self._reached_at >= REACHING_S:
            self._reached_at = now
            self._control.send(Reaching(node=self._node, unreached=unreached))

    def _push_tokens_to(self, address: str) -> None:
        if self._tokens is not None:
            if address == self._tokens_address:
                return
            self._tokens.close(linger_ms=0)
        self._tokens = Push(self._context, address, keys=self._plane.coordinator)
        self._tokens_address = address

    def _send_stats(self) -> None:
        if self._runner is not None:
            stats = self._runner.stats()
            if self._stage is not None:
                seconds = time.monotonic() - self._connected_at
                stats = msgspec.structs.replace(stats, seconds=seconds, wait_seconds=self._waited_s)
            self._control.send(WorkerStats(node=self._node, stats=stats))

    # ------------------------------------------------------------ the stage's outlet

    def rows(self, to: str, parts: Sequence[RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        self._channel.send_rows(to, parts, dtype, width, payload)

    def feed(self, to: str, tokens: Sequence[FedToken]) -> None:
        self._channel.feed(to, tokens)

    def say(self, message: Message) -> None:
        self._control.send(message)

    def used(self, header: Rows) -> None:
        self._channel.done(header)

    def tokens(self, tokens: Sequence[Token]) -> None:
        frame = encode(Tokens(instance=self._instance, node=self._node, tokens=tuple(tokens)))
        assert self._tokens is not None  # made with the last stage
        self._tokens.send_encoded(frame)
        self._control.send_encoded(frame)

    def _close(self) -> None:
        self._beat.stop()
        if self._loaded is not None:
            self._loaded.close()
        if self._runner is not None:
            self._runner.close()
        self._channel.close()
        if self._tokens is not None:
            self._tokens.close()
        self._control.close()
        self._plane.close()
        self._context.term()
