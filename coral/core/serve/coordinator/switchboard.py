"""Who is told of what: every message on the control socket goes to the part it concerns."""

from __future__ import annotations

import logging

from coral.core.serve.coordinator.authority import Authority
from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.controller import Controller
from coral.core.serve.coordinator.network import Network
from coral.core.serve.coordinator.planner_link import PlannerLink
from coral.core.serve.coordinator.requests import RequestTable
from coral.core.serve.net.wire import (
    AgentHello,
    AnyMessage,
    Begun,
    Drained,
    HandedOver,
    Heartbeat,
    InstanceFailed,
    InstanceProgress,
    InstanceReady,
    InstanceStats,
    Join,
    JoinRefused,
    KvAwaited,
    PlanAnswer,
    PlannerHello,
    ProcessExited,
    ProcessStarted,
    RequestLost,
    RequestRefused,
    SchedulerHello,
)

log = logging.getLogger("coral.coordinator")

SAID = 20
"""Refusals that are logged; more are only counted."""


class Switchboard:
    """Parts may come later than the socket; what concerns one that is not there is dropped."""

    def __init__(self) -> None:
        self.controller: Controller | None = None
        self.requests: RequestTable | None = None
        self.planner: PlannerLink | None = None
        self.authority: Authority | None = None
        self.network: Network | None = None
        self.refused = 0
        """Messages of peers that may not say such a thing."""

    def connect(self, controller: Controller, network: Network | None) -> None:
        """From now on messages reach it."""
        self.controller, self.network = controller, network
        self.authority = Authority(controller, network)

    def may_push(self, user: str, instance: str) -> bool:
        """See `Authority`."""
        return self.authority is not None and self.authority.may_push(user, instance)

    def on_message(self, peer: Peer, message: AnyMessage) -> None:
        match message:
            case PlannerHello() if self.planner is not None:
                self.planner.hello(peer, message)
                return
            case PlanAnswer() | Heartbeat() if self.planner is not None:
                self.planner.heard(peer, message)
        controller, requests = self.controller, self.requests
        if controller is None or requests is None or self.authority is None:
            return
        if refusal := self.authority.refusal(peer, message):
            self._refuse(peer, message, refusal)
            return
        controller.machines.heard(peer)
        controller.instances.heard(peer)
        match message:
            case Heartbeat() | PlanAnswer():
                pass
            case Join() if self.network is not None:
                controller.send_peer(peer, self.network.joins(peer, message))
            case AgentHello():
                if peer.user and self.network is not None:
                    controller.send_peer(peer, self.network.welcome(message.machine))
                if controller.machines.hello(peer, message) is not None:
                    controller.instances.agent_hello(message)
            case ProcessStarted(process=process, pid=pid):
                controller.instances.process_started(process, pid)
            case ProcessExited():
                controller.instances.process_exited(message)
            case SchedulerHello():
                controller.instances.scheduler_hello(peer, message)
            case InstanceProgress(instance=instance, loaded=loaded, nodes=nodes, text=text):
                controller.instances.made_progress(
                    instance, f"{loaded} of {nodes} workers loaded" + (f", {text}" if text else "")
                )
            case InstanceReady():
                controller.instances.is_ready(message)
            case InstanceFailed(instance=instance, reason=reason, node=node):
                controller.instances.broken(instance, f"{node}: {reason}" if node else reason)
            case InstanceStats():
                requests.stats(message)
                if (one := controller.instances.all().get(message.instance)) is not None:
                    one.stats = message
            case Drained(instance=instance):
                controller.instances.drained(instance)
            case Begun(request=request):
                if (one := controller.instances.by_peer(peer)) is not None:
                    requests.begun(request, one.id)
            case KvAwaited(request=request, to=to):
                if (one := controller.instances.by_peer(peer)) is not None:
                    requests.kv_awaited(request, one.id, to)
            case HandedOver(request=request):
                if (one := controller.instances.by_peer(peer)) is not None:
                    requests.handed_over(request, one.id)
            case RequestRefused(request=request, status=status, reason=reason):
                if (one := controller.instances.by_peer(peer)) is not None:
                    requests.refused(request, one.id, status, reason)
            case RequestLost(request=request, reason=reason):
                if (one := controller.instances.by_peer(peer)) is not None:
                    requests.lost(request, one.id, reason)
            case _:
                log.warning("control: a %s from %s is for nobody", type(message).__name__, peer)

    def _refuse(self, peer: Peer, message: AnyMessage, refusal: str) -> None:
        self.refused += 1
        if self.refused <= SAID:
            log.warning("control: a %s from %s is ignored: %s", type(message).__name__, peer, refusal)
        if isinstance(message, AgentHello | Join) and self.controller is not None:
            self.controller.send_peer(peer, JoinRefused(reason=refusal))
