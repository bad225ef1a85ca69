"""Agents of machines that nobody has rented yet: they have joined, and wait until somebody does."""

from __future__ import annotations

import time
from collections.abc import Callable

from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.net.wire import AgentHello, Heartbeat, StopProcess

STOP_GRACE_S = 3.0


class WaitingAgents:
    """By machine. One that is silent for `silence_s` is forgotten."""

    def __init__(
        self, control: Control, journal: Journal, *, silence_s: float, now: Callable[[], float]
    ) -> None:
        self._control = control
        self._journal = journal
        self._silence_s = silence_s
        self._now = now
        self._all: dict[str, tuple[Peer, AgentHello]] = {}
        self._heard: dict[str, float] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(self._all)

    def add(self, peer: Peer, hello: AgentHello) -> None:
        """It has said hello. What it still runs is nobody's."""
        if hello.machine not in self._all:
            self._journal.say("machine", f"{hello.machine} is there, and waits until it is rented")
        self._all[hello.machine] = peer, hello
        self._heard[hello.machine] = self._now()
        for status in hello.running:
            self._control.send(peer, StopProcess(process=status.process, grace_s=STOP_GRACE_S))

    def take(self, machine: str) -> tuple[Peer, AgentHello] | None:
        """It waits no longer: it is rented, or shut out."""
        self._heard.pop(machine, None)
        return self._all.pop(machine, None)

    def heard(self, peer: Peer) -> None:
        for machine, (known, _) in self._all.items():
            if known == peer:
                self._heard[machine] = self._now()

    def beat(self) -> None:
        for peer, _ in self._all.values():
            self._control.send(peer, Heartbeat(at_s=time.time()))

    def tick(self) -> None:
        for machine, heard in list(self._heard.items()):
            if self._now() - heard > self._silence_s:
                self.take(machine)
                self._journal.say("machine", f"{machine}, which was waiting, is silent")
