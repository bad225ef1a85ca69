"""The planner process: a loop over one socket, and a thread that solves."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time

import zmq

from coral.core.serve.net.wire import (
    Heartbeat,
    Message,
    PlanAnswer,
    PlanAsk,
    PlannerHello,
    Shutdown,
    decode,
    encode,
)
from coral.core.serve.planner.answering import Answering
from coral.errors import ProtocolError

TICK_MS = 100
HIGH_WATER = 100


class PlannerProcess:
    """Runs until told to leave, or until its coordinator is gone: its parent has changed, or the socket
    has been silent for `grace_s`. A solve in progress stops nobody from leaving: the thread is a daemon."""

    def __init__(
        self,
        answering: Answering,
        *,
        coordinator: str,
        templates: int,
        parent: int,
        grace_s: float,
        beat_s: float,
        solve_limit_s: float,
    ) -> None:
        self._answering = answering
        self._templates = templates
        self._parent = parent
        self._grace_s = grace_s
        self._beat_s = beat_s
        self._solve_limit_s = solve_limit_s
        self._leaving = ""
        self._solving: PlanAsk | None = None
        self._waiting: PlanAsk | None = None
        self._asks: queue.SimpleQueue[PlanAsk] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[PlanAnswer] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"planner-{os.getpid()}".encode())
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.connect(coordinator)

    def leave(self, reason: str) -> None:
        """May be called from a signal handler."""
        self._leaving = self._leaving or reason

    def run(self) -> str:
        """Returns why it ended."""
        threading.Thread(target=self._solve_forever, name="solve", daemon=True).start()
        heard = time.monotonic()
        beat_at = 0.0
        self._send(PlannerHello(pid=os.getpid(), templates=self._templates))
        try:
            while not self._leaving:
                if self._socket.poll(TICK_MS):
                    heard = time.monotonic()
                    self._receive()
                self._hand_back()
                now = time.monotonic()
                if now >= beat_at:
                    beat_at = now + self._beat_s
                    self._send(Heartbeat(at_s=time.time()))
                if os.getppid() != self._parent:
                    self.leave("the process that started it is gone")
                elif now - heard > self._grace_s and self._solving is None:
                    self.leave(f"the coordinator has been silent for {self._grace_s:g} s")
        finally:
            self._socket.close()
            self._context.term()
        return self._leaving

    def _receive(self) -> None:
        message = None
        try:
            message = decode(self._socket.recv())
        except ProtocolError as error:
            self._complain(str(error))
        match message:
            case PlanAsk():
                self._take(message)
            case Shutdown(reason=reason):
                self.leave(reason or "it was told to leave")
            case Heartbeat() | None:
                pass
            case _:
                self._complain(f"a {type(message).__name__} is nothing to a planner")

    def _take(self, ask: PlanAsk) -> None:
        """One is solved at a time; of those that wait the newest counts."""
        if self._solving is None:
            self._begin(ask)
            return
        if self._waiting is not None:
            self._send(PlanAnswer(ask=self._waiting.ask, error="a newer ask took the place of this one"))
        self._waiting = ask

    def _begin(self, ask: PlanAsk) -> None:
        self._solving = ask
        if self._solve_limit_s > 0:  # the kernel ends the process, whatever the solver is doing
            signal.setitimer(signal.ITIMER_REAL, self._solve_limit_s)
        self._asks.put(ask)

    def _hand_back(self) -> None:
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self._send(answer)
        self._solving = None
        if self._waiting is not None:
            ask, self._waiting = self._waiting, None
            self._begin(ask)

    def _solve_forever(self) -> None:
        while True:
            self._answers.put(self._answering.answer(self._asks.get()))

    def _send(self, message: Message) -> None:
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            self._complain(f"the coordinator takes no more: a {type(message).__name__} is dropped")

    def _complain(self, text: str) -> None:
        print(f"planner: {text}", file=sys.stderr, flush=True)
