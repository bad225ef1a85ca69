"""The lives of machines and instances: an event in, the new state and what to do about it out.

::

    machine    ordered → booting → joined → draining → released            lost from any but released
    instance   placed → loading → ready → draining → gone                  failed from any but gone

Nothing here acts or knows the time. What a driver sees happen is told as an event; what it must do
then comes back as commands. An event that means nothing in a state (a late message of something that
has ended) changes nothing and asks for nothing; an event that cannot happen there raises.
"""

from __future__ import annotations

from enum import StrEnum

from coral.errors import CoralError


class MachineState(StrEnum):
    ORDERED = "ordered"
    BOOTING = "booting"
    JOINED = "joined"
    DRAINING = "draining"
    RELEASED = "released"
    LOST = "lost"


class MachineEvent(StrEnum):
    RENTED = "rented"
    """The cloud has confirmed the order."""
    REFUSED = "refused"
    """The cloud cannot fill the order."""
    AGENT_JOINED = "agent joined"
    UNWANTED = "unwanted"
    """No plan wants it any longer and nothing runs on it."""
    GIVEN_BACK = "given back"
    """The cloud has taken it back."""
    VANISHED = "vanished"
    """Agent silent for too long, taken by the cloud, or never joined."""


class MachineCommand(StrEnum):
    RELEASE = "release"
    """Shut the agent down and give the machine back."""
    FAIL_INSTANCES = "fail instances"
    """What ran on it has failed."""
    REPLAN = "replan"


class InstanceState(StrEnum):
    PLACED = "placed"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"
    FAILED = "failed"


class InstanceEvent(StrEnum):
    STARTED = "started"
    """Its scheduler and workers have been asked for."""
    READY = "ready"
    UNWANTED = "unwanted"
    DRAINED = "drained"
    """Its last request has left."""
    BROKEN = "broken"
    """A process of it died, a machine under it was lost, it did not load in time."""


class InstanceCommand(StrEnum):
    ADMIT = "admit"
    """Route requests to it."""
    STOP_ADMITTING = "stop admitting"
    DRAIN = "drain"
    """Tell its scheduler to drain."""
    MOVE_REQUESTS = "move requests"
    """Requests on it go on elsewhere."""
    END_PROCESSES = "end processes"
    """End its scheduler and workers; its devices are free when the last has ended."""
    REPLAN = "replan"


M, E, C = MachineState, MachineEvent, MachineCommand
MACHINE_TABLE: dict[tuple[MachineState, MachineEvent], tuple[MachineState, tuple[MachineCommand, ...]]] = {
    (M.ORDERED, E.RENTED): (M.BOOTING, ()),
    (M.ORDERED, E.REFUSED): (M.LOST, (C.REPLAN,)),
    (M.ORDERED, E.AGENT_JOINED): (M.JOINED, ()),
    (M.ORDERED, E.UNWANTED): (M.DRAINING, (C.RELEASE,)),
    (M.ORDERED, E.VANISHED): (M.LOST, (C.REPLAN,)),
    (M.BOOTING, E.AGENT_JOINED): (M.JOINED, ()),
    (M.BOOTING, E.UNWANTED): (M.DRAINING, (C.RELEASE,)),
    (M.BOOTING, E.VANISHED): (M.LOST, (C.RELEASE, C.REPLAN)),
    (M.JOINED, E.UNWANTED): (M.DRAINING, (C.RELEASE,)),
    (M.JOINED, E.VANISHED): (M.LOST, (C.FAIL_INSTANCES, C.RELEASE, C.REPLAN)),
    (M.DRAINING, E.GIVEN_BACK): (M.RELEASED, ()),
    (M.DRAINING, E.VANISHED): (M.RELEASED, ()),
}

I, V, A = InstanceState, InstanceEvent, InstanceCommand  # noqa: E741
INSTANCE_TABLE: dict[
    tuple[InstanceState, InstanceEvent], tuple[InstanceState, tuple[InstanceCommand, ...]]
] = {
    (I.PLACED, V.STARTED): (I.LOADING, ()),
    (I.PLACED, V.UNWANTED): (I.GONE, (A.END_PROCESSES,)),
    (I.PLACED, V.BROKEN): (I.FAILED, (A.END_PROCESSES, A.REPLAN)),
    (I.LOADING, V.READY): (I.READY, (A.ADMIT,)),
    (I.LOADING, V.UNWANTED): (I.GONE, (A.END_PROCESSES,)),
    (I.LOADING, V.BROKEN): (I.FAILED, (A.END_PROCESSES, A.REPLAN)),
    (I.READY, V.UNWANTED): (I.DRAINING, (A.STOP_ADMITTING, A.DRAIN)),
    (I.READY, V.BROKEN): (I.FAILED, (A.STOP_ADMITTING, A.MOVE_REQUESTS, A.END_PROCESSES, A.REPLAN)),
    (I.DRAINING, V.DRAINED): (I.GONE, (A.END_PROCESSES,)),
    (I.DRAINING, V.BROKEN): (I.GONE, (A.MOVE_REQUESTS, A.END_PROCESSES)),
}

MACHINE_IGNORES: frozenset[tuple[MachineState, MachineEvent]] = frozenset(
    {
        (M.BOOTING, E.RENTED),
        (M.JOINED, E.RENTED),  # the agent was faster than the cloud's answer
        (M.JOINED, E.AGENT_JOINED),  # it re-joined
        (M.DRAINING, E.RENTED),
        (M.DRAINING, E.REFUSED),
        (M.DRAINING, E.AGENT_JOINED),
        (M.DRAINING, E.UNWANTED),
        *((state, event) for state in (M.RELEASED, M.LOST) for event in E),
    }
)
INSTANCE_IGNORES: frozenset[tuple[InstanceState, InstanceEvent]] = frozenset(
    {
        (I.DRAINING, V.UNWANTED),
        (I.DRAINING, V.READY),
        *((state, event) for state in (I.GONE, I.FAILED) for event in V),
    }
)


class ImpossibleEvent(CoralError):
    """A driver told of something that cannot happen in that state: a fault of ours."""


def machine_step(state: MachineState, event: MachineEvent) -> tuple[MachineState, tuple[MachineCommand, ...]]:
    """The machine's new state and what to do. Raises ImpossibleEvent."""
    if (state, event) in MACHINE_IGNORES:
        return state, ()
    try:
        return MACHINE_TABLE[state, event]
    except KeyError:
        raise ImpossibleEvent(f"a machine that is {state.value} cannot see '{event.value}'") from None


def instance_step(
    state: InstanceState, event: InstanceEvent
) -> tuple[InstanceState, tuple[InstanceCommand, ...]]:
    """The instance's new state and what to do. Raises ImpossibleEvent."""
    if (state, event) in INSTANCE_IGNORES:
        return state, ()
    try:
        return INSTANCE_TABLE[state, event]
    except KeyError:
        raise ImpossibleEvent(f"an instance that is {state.value} cannot see '{event.value}'") from None
