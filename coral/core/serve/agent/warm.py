"""The agent's side of its warmed processes (`forking`): started when wanted, asked, replaced when lost."""

from __future__ import annotations

import os
from collections.abc import Sequence

from coral.core.serve.agent.warmed import Warmed, Wish
from coral.core.serve.net.wire import StartProcess

PATIENCE_S = 120.0
"""How long a warmed process may take to import what it is for, and to fork."""
MOST = 8
"""Warmed processes kept; beyond, the one that was used least lately and has nothing to do ends."""
IDLE_S = 600.0
HOPELESS_S = 300.0
"""Modules that nothing can be forked after are not tried again within this time."""
DEATHS = 2
"""Warmed processes that may die under a wish before it is answered."""
OWN = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
"""What differs between processes that can be forked from one, and is set after the fork; so are secrets."""
SECRET = "CORAL_"

Key = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]


def key_of(start: StartProcess) -> Key | None:
    """What it can be forked from: interpreter, modules, environment. None where it must be started afresh."""
    if not start.preload or len(start.argv) < 3 or start.argv[1] != "-m":
        return None
    common = {name: value for name, value in start.env.items() if not _own(name)}
    return start.argv[0], start.preload, tuple(sorted(common.items()))


def _own(name: str) -> bool:
    return name in OWN or name.startswith(SECRET)


def request_of(start: StartProcess) -> dict[str, object]:
    return {"argv": start.argv, "env": {name: value for name, value in start.env.items() if _own(name)}}


class Warm:
    """Used by the agent's one thread: `fds` for its poller, `read` when one is readable, `tick` at times."""

    def __init__(self) -> None:
        self._warmed: dict[Key, Warmed] = {}
        self._hopeless: dict[Key, tuple[float, str]] = {}

    @property
    def fds(self) -> Sequence[int]:
        return [one.fileno() for one in self._warmed.values()]

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(one.pid for one in self._warmed.values())

    @property
    def busy(self) -> bool:
        """Somebody has been asked for a process and has not answered."""
        return any(one.wishes for one in self._warmed.values())

    def hopeless(self, key: Key, now: float) -> str:
        """Why nothing can be forked from it; empty where that was not tried lately or works."""
        until, why = self._hopeless.get(key, (0.0, ""))
        return why if now < until else ""

    def fork(self, key: Key, wish: Wish) -> None:
        """`wish.done` is called later, in any case. Raises OSError where no process can be started."""
        one = self._warmed.get(key) or self._begin(key, wish.asked)
        one.wishes.append(wish)
        self._go_on(key, one, wish.asked)

    def read(self, fd: int, now: float) -> None:
        for key, one in list(self._warmed.items()):
            if one.fileno() == fd:
                self._go_on(key, one, now)

    def tick(self, now: float) -> None:
        """Whoever does not answer in time is ended, and another answers; whoever is idle for long ends."""
        for key, one in list(self._warmed.items()):
            if one.wishes and now - one.since > PATIENCE_S:
                self._lost(key, f"did not answer within {PATIENCE_S:g} s", now)
            elif not one.wishes and now - one.since > IDLE_S:
                self._warmed.pop(key).end()

    def close(self) -> None:
        """End them; wishes are answered with 0."""
        for one in self._warmed.values():
            one.end()
            for wish in one.wishes:
                wish.done(0, "ends with its agent")
        self._warmed.clear()

    def _begin(self, key: Key, now: float) -> Warmed:
        idle = [one for one in self._warmed if not self._warmed[one].wishes]
        if len(self._warmed) >= MOST and idle:
            self._warmed.pop(min(idle, key=lambda one: self._warmed[one].since)).end()
        python, modules, env = key
        self._warmed[key] = Warmed(python, modules, {**os.environ, **dict(env)}, now)
        return self._warmed[key]

    def _go_on(self, key: Key, one: Warmed, now: float) -> None:
        why = one.go_on(now)
        if one.useless:
            self._hopeless[key] = (now + HOPELESS_S, why)
        if why:
            self._lost(key, why, now)

    def _lost(self, key: Key, why: str, now: float) -> None:
        """Its wishes go to another, unless that is hopeless or has been tried."""
        one = self._warmed.pop(key)
        one.end()
        for wish in one.wishes:
            wish.deaths += 1
            if one.useless or wish.deaths >= DEATHS:
                wish.done(0, why)
                continue
            wish.asked = now
            try:
                self.fork(key, wish)
            except OSError as error:
                wish.done(0, f"cannot be started: {error.strerror or error}")
