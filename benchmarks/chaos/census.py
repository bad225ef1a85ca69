"""Who lives: the schedulers and workers of a system, as /proc lists them, by their command lines."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Literal

from msgspec import Struct

LOOK_S = 0.1

Role = Literal["scheduler", "worker"]


class Person(Struct, frozen=True, kw_only=True):
    """A process of an instance. `node` is a worker's own id, a scheduler's instance."""

    pid: int
    role: Role
    instance: str
    node: str


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

    def living(self, role: Role | None = None) -> list[Person]:
        """By pid, so that a seeded choice among as many is the same choice."""
        with self._lock:
            return sorted(
                (one for one in self._living.values() if role in (None, one.role)), key=lambda one: one.pid
            )

    def kill(self, person: Person) -> bool:
        """kill -9; False where it is no longer there."""
        if self._ask(person.pid) != person:
            return False
        try:
            os.kill(person.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _ask(self, pid: int) -> Person | None:
        try:
            words = (
                Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
            )
            if words[1:2] != ["-m"] or not words[2:]:
                return None
            if words[2] == "coral.core.serve.instance":
                instance = _after(words, "--instance")
                person = Person(pid=pid, role="scheduler", instance=instance, node=instance)
            elif words[2] == "coral.core.serve.worker":
                node = _after(words, "--node")
                person = Person(pid=pid, role="worker", instance=node.partition("/")[0], node=node)
            else:
                return None
            marked = self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return None
        return person if marked else None


def _after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""
