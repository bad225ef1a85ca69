"""From the scheduler's commands to messages."""

from __future__ import annotations

from coral.core.operate.command import (
    Await,
    Begin,
    Command,
    Drained,
    Extend,
    HandedOver,
    Lose,
    Open,
    Refuse,
    Release,
    Resume,
    SendKv,
    ToNode,
)
from coral.core.serve.instance.startup import Startup
from coral.core.serve.net import wire
from coral.types.handover import KvDestination, KvNode
from coral.types.stage import InstanceSpec


class Outgoing:
    """What a command is as a message. Knows where the nodes of this instance are reached."""

    def __init__(self, spec: InstanceSpec, startup: Startup) -> None:
        self._spec = spec
        self._startup = startup

    def message(self, command: Command) -> tuple[str, wire.Message]:
        """(node, message); the node is empty where the coordinator is meant."""
        if isinstance(command, ToNode):
            return command.node, self._to_node(command)
        return "", self._to_coordinator(command)

    def _to_node(self, command: ToNode) -> wire.Message:
        match command:
            case Open():
                return wire.OpenSequence(
                    request=command.request,
                    attempt=command.attempt,
                    reserve=command.reserve,
                    route=command.route,
                    leg=command.leg,
                )
            case Extend():
                return wire.ExtendSequence(
                    request=command.request, attempt=command.attempt, reserve=command.reserve
                )
            case Release():
                return wire.ReleaseSequences(sequences=command.sequences)
            case SendKv():
                return wire.SendKv(
                    request=command.request,
                    attempt=command.attempt,
                    to=command.to,
                    lease_s=self._spec.kv_lease_s,
                )
            case Resume():
                return wire.ResumeSequence(
                    request=command.request, attempt=command.attempt, tokens=command.tokens
                )

    def _to_coordinator(self, command: Begin | Await | HandedOver | Refuse | Lose | Drained) -> wire.Message:
        match command:
            case Begin():
                return wire.Begun(request=command.request)
            case Await():
                return wire.KvAwaited(request=command.request, to=self._destination(command))
            case HandedOver():
                return wire.HandedOver(request=command.request)
            case Refuse():
                return wire.RequestRefused(
                    request=command.request, status=command.status, reason=command.reason
                )
            case Lose():
                return wire.RequestLost(request=command.request, reason=command.reason)
            case Drained():
                return wire.Drained(instance=self._spec.instance)

    def _destination(self, command: Await) -> KvDestination:
        specs, addresses = self._startup.specs, self._startup.addresses
        nodes = tuple(
            KvNode(
                node=node,
                first_layer=specs[node].first_layer,
                end_layer=specs[node].end_layer,
                address=addresses[node],
            )
            for node in command.route
        )
        return KvDestination(
            instance=self._spec.instance,
            generation=self._spec.generation,
            attempt=command.attempt,
            nodes=nodes,
        )
