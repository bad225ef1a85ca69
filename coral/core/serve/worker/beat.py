"""The worker's heartbeat: a thread with a socket of its own, so that long loads and steps do not
silence the node, and so that a worker leaves when its scheduler is gone, whatever it is doing."""

from __future__ import annotations

import logging
import os
import threading
import time

import zmq

from coral.core.serve.net.curve import CurveClient
from coral.core.serve.net.transport import Dealer
from coral.core.serve.net.wire import Heartbeat, Shutdown, WorkerFailed

log = logging.getLogger("coral.worker")

BEAT_S = 1.0
FIRST_CONTACT_S = 10.0
"""A scheduler is there before its workers: one that is not heard at all within this time is gone."""
SUFFIX = "#beat"
"""A node's heartbeat socket is known to the scheduler under the node's name with this suffix."""
EXIT_ORPHANED = 3
EXIT_STUCK = 4


class Beat(threading.Thread):
    """Beats every second. Sets `ended` to a reason when the worker must leave; if the main thread has
    not left after the grace it was given, the process is ended from here."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        scheduler: str,
        keys: CurveClient | None,
        node: str,
        *,
        grace_s: float,
        step_limit_s: float,
    ) -> None:
        super().__init__(name="beat", daemon=True)
        self._context = context
        self._scheduler = scheduler
        self._keys = keys
        self._node = node
        self._grace_s = grace_s
        self._step_limit_s = step_limit_s
        self._quit = threading.Event()
        self.ended = ""
        self.introduced = False
        """The scheduler knows of this worker, and answers. Set by the main thread."""
        self.step_since = 0.0
        """Monotonic start of the step that runs now; 0 between steps. Set by the main thread."""

    def stop(self) -> None:
        self._quit.set()
        self.join()

    def run(self) -> None:
        socket = Dealer(self._context, self._scheduler, identity=self._node + SUFFIX, keys=self._keys)
        heard = time.monotonic()
        patience_s = min(self._grace_s, FIRST_CONTACT_S)
        leave_at = float("inf")
        try:
            while not self._quit.is_set():
                socket.send(Heartbeat(at_s=time.time()))
                self._quit.wait(BEAT_S)
                messages = socket.drain()
                now = time.monotonic()
                if not self.introduced:
                    heard = now
                elif messages:
                    heard, patience_s = now, self._grace_s
                for message in messages:
                    if isinstance(message, Shutdown) and not self.ended:
                        self.ended = message.reason or "told to end"
                        leave_at = now + message.grace_s
                if now - heard > patience_s and not self.ended:
                    self.ended = f"the scheduler has been silent for {patience_s:g} s"
                    leave_at = now + BEAT_S
                if now > leave_at:
                    log.error("%s: ended in the middle of its work: %s", self._node, self.ended)
                    os._exit(EXIT_ORPHANED)
                self._watch_step(socket, now)
        finally:
            socket.close()

    def _watch_step(self, socket: Dealer, now: float) -> None:
        since = self.step_since
        if since and now - since > self._step_limit_s:
            reason = f"a step has not ended within {self._step_limit_s:g} s"
            log.error("%s: %s", self._node, reason)
            socket.send(WorkerFailed(node=self._node, reason=reason))
            socket.close()
            time.sleep(BEAT_S)
            os._exit(EXIT_STUCK)
