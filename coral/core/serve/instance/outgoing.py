"""From the scheduler's commands to messages."""

from __future__ import annotations

from coral.core.operate.command import Command, Drained, Extend, Lose, Open, Refuse, Release
from coral.core.serve.net import wire


def outgoing(command: Command, instance: str) -> tuple[str, wire.Message]:
    """(node, message); the node is empty where the coordinator is meant."""
    match command:
        case Open():
            return command.node, wire.OpenSequence(
                request=command.request,
                attempt=command.attempt,
                reserve=command.reserve,
                route=command.route,
            )
        case Extend():
            return command.node, wire.ExtendSequence(
                request=command.request, attempt=command.attempt, reserve=command.reserve
            )
        case Release():
            return command.node, wire.ReleaseSequences(sequences=command.sequences)
        case Refuse():
            return "", wire.RequestRefused(
                request=command.request, status=command.status, reason=command.reason
            )
        case Lose():
            return "", wire.RequestLost(request=command.request, reason=command.reason)
        case Drained():
            return "", wire.Drained(instance=instance)
