"""Who lives: the processes of a system, as /proc lists them, by their command lines."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Literal

from msgspec import Struct

LOOK_S = 0.1

Role = Literal["scheduler", "worker", "agent", "planner", "warmed"]
MODULES: dict[str, tuple[Role, str]] = {
    "coral.core.serve.instance": ("scheduler", "--instance"),
    "coral.core.serve.worker": ("worker", "--node"),
    "coral.core.serve.agent": ("agent", "--machine"),
    "coral.core.serve.planner": ("planner", "--coordinator"),
}
"""By module: its role, and the argument that names it."""


class Person(Struct, frozen=True, kw_only=True):
    """`name`: a worker's node, a scheduler's instance, an agent's machine."""

    pid: int
    role: Role
    name: str

    @property
    def instance(self) -> str:
        """Of a scheduler or worker."""
        return self.name.partition("/")[0]


class Census(threading.Thread):
    """Looks ten times a second. `seen`: all there have ever been; they carry `mark` in their environment."""

    def __init__(self, mark: str) -> None:
        super().__init__(name="census", daemon=True)
        self._mark = mark.encode()
        self._quit = threading.Event()
        self._lock = threading.Lock()
        self._living: dict[int, Person] = {}
        self.seen: set[Person] = set()

    def run(self) -> None:
        while not self._quit.wait(LOOK_S):
            self.look()

    def stop(self) -> None:
        self._quit.set()
        self.join()

    def look(self) -> None:
        with self._lock:
            there = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
            for pid in set(self._living) - there:
                del self._living[pid]
            for pid in there - set(self._living):
                person = self._ask(pid)
                if person is not None:
                    self._living[pid] = person
                    self.seen.add(person)

    def living(self, role: str = "") -> list[Person]:
        """By pid, so that a seeded choice among as many is the same choice."""
        with self._lock:
            return sorted(
                (one for one in self._living.values() if role in ("", one.role)), key=lambda one: one.pid
            )

    def send(self, person: Person, number: signal.Signals) -> bool:
        """False where it is no longer there."""
        if self._ask(person.pid) != person:
            return False
        try:
            os.kill(person.pid, number)
        except ProcessLookupError:
            return False
        return True

    def _ask(self, pid: int) -> Person | None:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
            person = _person(pid, line.split("\0"))
            if person is None or self._mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return None
        except (FileNotFoundError, ProcessLookupError):
            return None
        return person


def _person(pid: int, words: list[str]) -> Person | None:
    if words[0] == "coral-warmed":
        return Person(pid=pid, role="warmed", name=words[-1])
    if words[1:2] != ["-m"] or len(words) < 3 or words[2] not in MODULES:
        return None
    role, argument = MODULES[words[2]]
    name = words[words.index(argument) + 1] if argument in words[:-1] else ""
    return Person(pid=pid, role=role, name=name)
