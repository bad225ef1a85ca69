"""Who may say what: a message is taken from the process, machine or instance that it is about, and from
nobody else, however well formed it is."""

from __future__ import annotations

import ipaddress

from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.controller import Controller
from coral.core.serve.coordinator.network import Network
from coral.core.serve.instance import identity
from coral.core.serve.net.wire import (
    AgentHello,
    AnyMessage,
    Drained,
    Heartbeat,
    InstanceFailed,
    InstanceProgress,
    InstanceReady,
    InstanceStats,
    Join,
    PlanAnswer,
    PlannerHello,
    ProcessExited,
    ProcessStarted,
    SchedulerHello,
)

OfInstance = InstanceProgress | InstanceReady | InstanceFailed | InstanceStats | Drained


class Authority:
    """Processes of this machine are ours, but even of them none speaks for another."""

    def __init__(self, controller: Controller, network: Network | None) -> None:
        self._machines = controller.machines
        self._instances = controller.instances
        self._network = network

    def refusal(self, peer: Peer, message: AnyMessage) -> str:
        """Why this peer may not say that; empty where it may."""
        match message:
            case Heartbeat():
                return ""
            case Join():
                return "" if peer.user else "it is on this machine, and needs no key"
            case PlannerHello() | PlanAnswer():
                return "plans are made on this machine" if peer.user else ""
            case AgentHello():
                return self._agent(peer, message)
            case ProcessStarted() | ProcessExited():
                return self._process(peer, message.process)
            case SchedulerHello():
                return self._scheduler(peer, message)
            case InstanceProgress() | InstanceReady() | InstanceFailed() | InstanceStats() | Drained():
                return self._instance(peer, message)
            case _:
                return "" if self._instances.by_peer(peer) is not None else "it is no instance"

    def _agent(self, peer: Peer, hello: AgentHello) -> str:
        if not peer.user:
            return ""
        if self._network is None or self._network.machine_of(peer) != hello.machine:
            return f"its key is not that of machine {hello.machine!r}"
        try:
            ipaddress.ip_address(hello.address)
        except ValueError:
            return f"{hello.address[:100]!r} is no IP address at which others reach it"
        return ""

    def _process(self, peer: Peer, process: str) -> str:
        machine = self._machines.by_peer(peer)
        if machine is None:
            return "it is the agent of no machine of ours"
        where = self._instances.machine_of(process)
        return "" if where in (None, machine) else f"that runs on {where}, not on {machine}"

    def _scheduler(self, peer: Peer, hello: SchedulerHello) -> str:
        bound = self._instances.by_peer(peer)
        if bound is not None and bound.id != hello.instance:
            return f"it is the scheduler of {bound.id}"
        if not peer.user:
            return ""
        one = self._instances.all().get(hello.instance)
        if one is None or self._network is None or self._network.model_of(peer.user) != one.model:
            return "its key is not that of the instance's model"
        ticket = self._network.ticket(hello.instance, hello.generation)
        if peer.identity != identity(hello.instance, hello.generation, ticket).encode():
            return "it has no ticket for that instance"
        return ""

    def _instance(self, peer: Peer, message: OfInstance) -> str:
        one = self._instances.by_peer(peer)
        return "" if one is not None and one.id == message.instance else "that is another instance"

    def may_push(self, user: str, instance: str) -> bool:
        """Whether tokens of that instance may come from whoever has shown that key (empty: from here)."""
        if not user:
            return True
        one = self._instances.all().get(instance)
        return one is not None and self._network is not None and self._network.model_of(user) == one.model
