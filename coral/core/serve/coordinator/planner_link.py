"""The planner process: asked for plans, under a deadline; killed and started again where it overruns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.side_process import SideProcess
from coral.core.serve.net.wire import Heartbeat, PlanAnswer, PlanAsk, PlannerHello
from coral.core.serve.planner.deadline import PlannerDeadline
from coral.errors import SolverError
from coral.hookspecs.planner import View
from coral.types.plan import Plan

CHECK_S = 0.2


class PlannerLink:
    """One ask at a time. `run` keeps the process alive until it is cancelled."""

    def __init__(
        self,
        argv: Sequence[str],
        control: Control,
        journal: Journal,
        log: Path,
        deadline: PlannerDeadline,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._argv = argv
        self._control = control
        self._journal = journal
        self._log = log
        self._deadline = deadline
        self._now = now
        self._process: SideProcess | None = None
        self._peer: Peer | None = None
        self._asks = 0
        self._answer: asyncio.Future[Plan] | None = None
        self._can_ask = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def restarts(self) -> int:
        return self._deadline.restarts

    @property
    def state(self) -> str:
        return self._deadline.state

    def peers(self) -> list[Peer]:
        return [self._peer] if self._peer is not None else []

    async def ask(self, view: View, *, patience_s: float) -> Plan:
        """A plan for that view. Raises SolverError where none comes: the planner failed, overran its
        deadline and was killed, or did not come up within `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                await self._can_ask.wait()
        except TimeoutError:
            raise SolverError(f"the planner is not up within {patience_s:g} s{self._last_words()}") from None
        assert self._peer is not None
        self._asks += 1
        self._answer = asyncio.get_running_loop().create_future()
        self._deadline.asked(self._asks, self._now())
        self._can_ask.clear()
        sent = self._control.send(self._peer, PlanAsk(ask=self._asks, view=msgspec.to_builtins(view)))
        if not sent:
            self._peer = self._answer = None
            raise SolverError("the planner process cannot be reached")
        return await self._answer

    def hello(self, peer: Peer, hello: PlannerHello) -> None:
        if self._process is None or hello.pid != self._process.pid:
            return
        self._peer = peer
        self._deadline.hello(self._now())
        self._can_ask.set()
        self._journal.say("plan", f"planner is up, {hello.templates:,} templates")

    def heard(self, peer: Peer, message: Heartbeat | PlanAnswer) -> None:
        if peer != self._peer:
            return
        self._deadline.beat(self._now())
        if not isinstance(message, PlanAnswer):
            return
        if not self._deadline.answered(message.ask, self._now()):
            return
        self._can_ask.set()
        if self._answer is None or self._answer.done():
            return
        if message.plan is None:
            self._answer.set_exception(SolverError(message.error or "the planner gave no plan"))
            return
        try:
            self._answer.set_result(msgspec.convert(message.plan, Plan))
        except msgspec.ValidationError as error:
            self._answer.set_exception(SolverError(f"the planner's answer is no plan: {error}"))

    async def run(self) -> None:
        """Start, watch, kill and start again. Cancelled, it ends the process."""
        try:
            while True:
                if self._process is not None and self._process.returncode is not None:
                    await self._process.wait()
                    self._gone(f"ended with status {self._process.returncode}")
                match self._deadline.action(self._now()):
                    case "start":
                        self._process = await SideProcess.start(self._argv, self._log)
                        self._deadline.spawned(self._now())
                    case "kill":
                        assert self._process is not None
                        overran = self._deadline.state
                        await self._process.end(grace_s=0)
                        self._gone(f"was killed: it overran its deadline while {overran}")
                    case "wait":
                        pass
                await asyncio.sleep(CHECK_S)
        finally:
            if self._process is not None:
                await self._process.end(grace_s=1.0)

    def _gone(self, why: str) -> None:
        self._deadline.exited(self._now())
        self._peer = None
        self._can_ask.clear()
        self._journal.say("plan", f"the planner process {why}{self._last_words()}", fault=True)
        self._process = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(SolverError(f"the planner process {why}"))

    def _last_words(self) -> str:
        tail = self._process.tail() if self._process else ""
        return f"\n{tail}" if tail else ""
