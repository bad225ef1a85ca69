"""When to kill the planner process and when to start it again. Pure: time is an argument."""

from __future__ import annotations

from typing import Literal

Action = Literal["wait", "kill", "start"]
State = Literal["down", "starting", "idle", "asked"]


class PlannerDeadline:
    """The life of the planner process as its coordinator sees it.

    Tell it what happens (`spawned`, `hello`, `asked`, `answered`, `beat`, `exited`) and ask for the next
    `action`: `kill` (then report `exited`), `start` (then report `spawned`), or `wait`. After a kill or
    a crash the next start waits, twice as long each time up to `backoff_most_s`; an answer resets that.
    """

    def __init__(
        self,
        *,
        answer_s: float,
        start_s: float = 60.0,
        silence_s: float = 20.0,
        backoff_s: float = 1.0,
        backoff_most_s: float = 60.0,
    ) -> None:
        self.answer_s = answer_s
        self.start_s = start_s
        self.silence_s = silence_s
        self.backoff_most_s = backoff_most_s
        self._backoff_first_s = backoff_s
        self._backoff_s = backoff_s
        self.state: State = "down"
        self.ask: int | None = None
        self.restarts = 0
        self._due_s = float("-inf")
        self._heard_s = float("-inf")

    def spawned(self, now: float) -> None:
        self.state, self.ask = "starting", None
        self._due_s = now + self.start_s
        self._heard_s = now

    def hello(self, now: float) -> None:
        self.state, self._heard_s = "idle", now

    def asked(self, ask: int, now: float) -> None:
        """An ask was sent. Raises ValueError where the process cannot take one."""
        if self.state != "idle":
            raise ValueError(f"the planner is {self.state} and takes no ask")
        self.state, self.ask = "asked", ask
        self._due_s = now + self.answer_s
        self._heard_s = now

    def answered(self, ask: int, now: float) -> bool:
        """True where this is the answer that was waited for; a late one is False and changes nothing."""
        self._heard_s = now
        if self.state != "asked" or ask != self.ask:
            return False
        self.state, self.ask = "idle", None
        self._backoff_s = self._backoff_first_s
        return True

    def beat(self, now: float) -> None:
        self._heard_s = now

    def exited(self, now: float) -> int | None:
        """The process is gone; returns the ask that goes unanswered, if there was one."""
        lost = self.ask
        self.state, self.ask = "down", None
        self.restarts += 1
        self._due_s = now + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, self.backoff_most_s)
        return lost

    def action(self, now: float) -> Action:
        if self.state == "down":
            return "start" if now >= self._due_s else "wait"
        if self.state == "idle":
            return "kill" if now - self._heard_s > self.silence_s else "wait"
        return "kill" if now >= self._due_s else "wait"
