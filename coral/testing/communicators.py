"""Communicators for tests, with the rules of NCCL and nothing more.

A pair is one way. Operations of a pair meet in the order in which each side posted them, and sizes must
match; a send may not complete before its receive was posted (no buffer is promised); nothing tells a
receiver what comes next. An end that breaks a rule breaks its pair, loudly: `violations` lists how.
"""

from __future__ import annotations

import threading
from collections import deque

from coral.core.serve.net.communicator import PathBroken
from coral.types.stage import Buffer


class StrictPair:
    """What both ends share. `slow`: an event without which no receive completes, for slow writers."""

    def __init__(self, violations: list[str], name: str) -> None:
        self.name = name
        self.changed = threading.Condition()
        self.sent: deque[memoryview] = deque()
        self.taken = 0
        self.posted = 0
        self.ends: set[str] = set()
        self.aborted = False
        self._violations = violations

    def violation(self, what: str) -> PathBroken:
        self._violations.append(f"{self.name}: {what}")
        self.aborted = True
        self.changed.notify_all()
        return PathBroken(what)


class StrictEnd:
    """A `Communicator`."""

    def __init__(self, pair: StrictPair, role: str, patience_s: float) -> None:
        self._pair = pair
        self._role = role
        self._patience_s = patience_s

    def send(self, data: Buffer) -> None:
        pair = self._pair
        with pair.changed:
            self._must_be("sender")
            view = memoryview(data).cast("B")
            before = bytes(view)
            pair.posted += 1
            number = pair.posted
            pair.sent.append(view)
            pair.changed.notify_all()
            self._until(lambda: pair.taken >= number)
            if bytes(view) != before:
                raise pair.violation(f"buffer {number} was changed while it was sent")

    def recv(self, nbytes: int) -> Buffer:
        pair = self._pair
        with pair.changed:
            self._must_be("receiver")
            self._until(lambda: bool(pair.sent))
            view = pair.sent.popleft()
            if view.nbytes != nbytes:
                raise pair.violation(f"a receive of {nbytes} bytes meets a send of {view.nbytes}")
            data = bytearray(view)
            pair.taken += 1
            pair.changed.notify_all()
            return data

    def abort(self) -> None:
        with self._pair.changed:
            self._pair.aborted = True
            self._pair.changed.notify_all()

    def _must_be(self, role: str) -> None:
        if self._role != role:
            raise self._pair.violation(f"the {self._role} acts as {role}")

    def _until(self, holds: object) -> None:
        assert callable(holds)
        if not self._pair.changed.wait_for(lambda: self._pair.aborted or holds(), self._patience_s):
            raise PathBroken(f"{self._pair.name}: the other end does nothing")
        if self._pair.aborted:
            raise PathBroken(f"{self._pair.name}: aborted")


class StrictMaker:
    """A `Maker`; all makers of one `network` (a dict) can reach each other."""

    def __init__(
        self, network: dict[str, StrictPair], violations: list[str], *, host: str, patience_s: float = 10.0
    ) -> None:
        self._network = network
        self._violations = violations
        self._patience_s = patience_s
        self.address = f"strict@{host}"

    def sender(self, name: str, address: str) -> StrictEnd:
        return self._end(f"{name}@{address}", "sender")

    def receiver(self, name: str) -> StrictEnd:
        return self._end(f"{name}@{self.address}", "receiver")

    def close(self) -> None:
        pass

    def _end(self, name: str, role: str) -> StrictEnd:
        pair = self._network.setdefault(name, StrictPair(self._violations, name))
        with pair.changed:
            if role in pair.ends:
                raise pair.violation(f"a second {role} of one pair")
            pair.ends.add(role)
            pair.changed.notify_all()
            if not pair.changed.wait_for(lambda: len(pair.ends) == 2, self._patience_s):
                raise PathBroken(f"{name}: the other end has not come")
        return StrictEnd(pair, role, self._patience_s)
