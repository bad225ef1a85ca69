"""Every (state, event) pair of both tables is a transition, ignored on purpose, or an error."""

from __future__ import annotations

import itertools

import pytest

from coral.core.operate.lifecycle import (
    INSTANCE_IGNORES,
    INSTANCE_TABLE,
    MACHINE_IGNORES,
    MACHINE_TABLE,
    ImpossibleEvent,
    InstanceCommand,
    InstanceEvent,
    InstanceState,
    MachineCommand,
    MachineEvent,
    MachineState,
    instance_step,
    machine_step,
)

MACHINE_ROWS = """
ordered   rented        booting
ordered   refused       lost      replan
ordered   agent_joined  joined
ordered   unwanted      draining  release
ordered   vanished      lost      replan
booting   rented        booting
booting   refused       !
booting   agent_joined  joined
booting   unwanted      draining  release
booting   vanished      lost      release replan
joined    rented        joined
joined    refused       !
joined    agent_joined  joined
joined    unwanted      draining  release
joined    vanished      lost      fail_instances release replan
draining  rented        draining
draining  refused       draining
draining  agent_joined  draining
draining  unwanted      draining
draining  given_back    released
draining  vanished      released
ordered   given_back    !
booting   given_back    !
joined    given_back    !
"""

INSTANCE_ROWS = """
placed    started   loading
placed    ready     !
placed    unwanted  gone      end_processes
placed    drained   !
placed    broken    failed    end_processes replan
loading   started   !
loading   ready     ready     admit
loading   unwanted  gone      end_processes
loading   drained   !
loading   broken    failed    end_processes replan
ready     started   !
ready     ready     !
ready     unwanted  draining  stop_admitting drain
ready     drained   !
ready     broken    failed    stop_admitting move_requests end_processes replan
draining  started   !
draining  ready     draining
draining  unwanted  draining
draining  drained   gone      end_processes
draining  broken    gone      move_requests end_processes
"""


def rows(text: str, ends: tuple[str, ...], events: list[str]) -> list[tuple[str, str, str, list[str]]]:
    lines = [line.split() for line in text.strip().splitlines()]
    lines += [[end, event, end] for end in ends for event in events]
    return [(line[0], line[1], line[2], line[3:]) for line in lines]


MACHINE_CASES = rows(MACHINE_ROWS, ("released", "lost"), [event.name.lower() for event in MachineEvent])
INSTANCE_CASES = rows(INSTANCE_ROWS, ("gone", "failed"), [event.name.lower() for event in InstanceEvent])


@pytest.mark.parametrize(("before", "event", "after", "commands"), MACHINE_CASES)
def test_machine(before: str, event: str, after: str, commands: list[str]) -> None:
    state, happened = MachineState[before.upper()], MachineEvent[event.upper()]
    if after == "!":
        with pytest.raises(ImpossibleEvent, match=before):
            machine_step(state, happened)
        return
    expected = tuple(MachineCommand[command.upper()] for command in commands)
    assert machine_step(state, happened) == (MachineState[after.upper()], expected)


@pytest.mark.parametrize(("before", "event", "after", "commands"), INSTANCE_CASES)
def test_instance(before: str, event: str, after: str, commands: list[str]) -> None:
    state, happened = InstanceState[before.upper()], InstanceEvent[event.upper()]
    if after == "!":
        with pytest.raises(ImpossibleEvent, match=before):
            instance_step(state, happened)
        return
    expected = tuple(InstanceCommand[command.upper()] for command in commands)
    assert instance_step(state, happened) == (InstanceState[after.upper()], expected)


def test_every_pair_is_written_down() -> None:
    machine = {(row[0], row[1]) for row in MACHINE_CASES}
    assert machine == {
        (s.name.lower(), e.name.lower()) for s, e in itertools.product(MachineState, MachineEvent)
    }
    instance = {(row[0], row[1]) for row in INSTANCE_CASES}
    assert instance == {
        (s.name.lower(), e.name.lower()) for s, e in itertools.product(InstanceState, InstanceEvent)
    }


def test_no_pair_is_both_a_transition_and_ignored() -> None:
    assert not MACHINE_IGNORES & MACHINE_TABLE.keys()
    assert not INSTANCE_IGNORES & INSTANCE_TABLE.keys()
