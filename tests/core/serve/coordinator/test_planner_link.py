"""The link to a planner process that is a script: it answers, dies, or hangs, as it is told."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.planner_link import PlannerLink
from coral.core.serve.coordinator.switchboard import Switchboard
from coral.core.serve.net.wire import AnyMessage
from coral.core.serve.planner.deadline import PlannerDeadline
from coral.errors import SolverError
from coral.hookspecs.planner import View
from coral.types.plan import Plan

SCRIPT = """
import os, pathlib, sys, time, zmq
from coral.core.serve.net.wire import *
address, folder = sys.argv[1], pathlib.Path(sys.argv[2])
context = zmq.Context()
socket = context.socket(zmq.DEALER)
socket.connect(address)
socket.send(encode(PlannerHello(pid=os.getpid(), templates=3)))
while True:
    if not socket.poll(200):
        socket.send(encode(Heartbeat(at_s=time.time())))
        continue
    message = decode(socket.recv())
    if not isinstance(message, PlanAsk):
        continue
    what = (folder / "do").read_text()
    if what == "abort":
        os.abort()
    if what == "hang":
        time.sleep(300)
    if what == "error":
        socket.send(encode(PlanAnswer(ask=message.ask, error="no library")))
    elif what == "nonsense":
        socket.send(encode(PlanAnswer(ask=message.ask, plan={"planner": 3})))
    else:
        plan = dict(planner="script", machines=(), instances=(), services=(), price_usd_h=1.0,
                    initialization_usd_h=0.0, certificate=None)
        socket.send(encode(PlanAnswer(ask=message.ask, plan=plan)))
"""
VIEW = View(models=(), offers=())
Body = Callable[[PlannerLink, Path], Awaitable[None]]


def run(folder: Path, body: Body, *, answer_s: float = 20.0) -> Journal:
    journal = Journal()
    pids: list[int] = []

    async def inside() -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        board = Switchboard()

        def on_message(peer: Peer, message: AnyMessage) -> None:
            board.on_message(peer, message)

        control = Control(context, f"ipc://{folder}/c", on_message)
        deadline = PlannerDeadline(answer_s=answer_s, start_s=30.0, backoff_s=0.2)
        argv = (sys.executable, "-c", SCRIPT, control.address, str(folder))
        link = board.planner = PlannerLink(argv, control, journal, folder / "planner.log", deadline)
        running = asyncio.create_task(link.run())
        try:
            await body(link, folder)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            control.close()
            context.destroy(0)
        pids.append(link.pid)

    asyncio.run(asyncio.wait_for(inside(), 60))
    assert [pid for pid in pids if pid and Path(f"/proc/{pid}").exists()] == []
    return journal


async def ask(link: PlannerLink, folder: Path, what: str) -> Plan:
    (folder / "do").write_text(what)
    return await link.ask(VIEW, patience_s=20)


def test_it_answers_and_after_an_error_again(tmp_path: Path) -> None:
    async def body(link: PlannerLink, folder: Path) -> None:
        assert (await ask(link, folder, "plan")).planner == "script"
        with pytest.raises(SolverError, match="no library"):
            await ask(link, folder, "error")
        with pytest.raises(SolverError, match="is no plan"):
            await ask(link, folder, "nonsense")
        pid = link.pid
        assert (await ask(link, folder, "plan")).price_usd_h == 1.0
        assert link.pid == pid

    run(tmp_path, body)


def test_one_that_aborts_is_started_again_and_the_loop_goes_on(tmp_path: Path) -> None:
    async def body(link: PlannerLink, folder: Path) -> None:
        assert (await ask(link, folder, "plan")).planner == "script"
        first = link.pid
        gaps: list[float] = []

        async def stream() -> None:
            """Stands for token streams: the longest time for which the loop was not free."""
            last = time.monotonic()
            while True:
                await asyncio.sleep(0.01)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        streaming = asyncio.create_task(stream())
        with pytest.raises(SolverError, match="ended with status -6"):
            await ask(link, folder, "abort")
        assert (await ask(link, folder, "plan")).planner == "script"
        streaming.cancel()
        assert link.pid != first
        assert max(gaps) < 1.0

    run(tmp_path, body)


def test_one_that_hangs_is_killed_at_its_deadline(tmp_path: Path) -> None:
    async def body(link: PlannerLink, folder: Path) -> None:
        assert (await ask(link, folder, "plan")).planner == "script"
        started = time.monotonic()
        with pytest.raises(SolverError, match="killed"):
            await ask(link, folder, "hang")
        assert 1.0 <= time.monotonic() - started < 6.0
        assert (await ask(link, folder, "plan")).planner == "script"
        assert link.restarts == 1

    journal = run(tmp_path, body, answer_s=1.5)
    assert any("overran its deadline" in entry.text for entry in journal.entries)


def test_one_that_is_gone_when_it_is_asked_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(link: PlannerLink, folder: Path) -> None:
        assert (await ask(link, folder, "plan")).planner == "script"
        os.kill(link.pid, signal.SIGKILL)
        time.sleep(0.3)  # noqa: ASYNC251  (its connection is gone, and the loop has not looked at it yet)
        with pytest.raises(SolverError):
            await ask(link, folder, "plan")
        assert (await ask(link, folder, "plan")).planner == "script"
        gc.collect()

    run(tmp_path, body)
    assert "never retrieved" not in caplog.text


def test_one_that_never_comes_up_is_no_plan(tmp_path: Path) -> None:
    async def body(link: PlannerLink, folder: Path) -> None:
        with pytest.raises(SolverError, match="not up within"):
            await link.ask(VIEW, patience_s=0.01)

    run(tmp_path, body)


def test_views_travel_as_plain_data() -> None:
    assert msgspec.convert(msgspec.to_builtins(VIEW), View) == VIEW
