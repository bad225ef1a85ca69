"""Worker processes on this machine, each a fresh interpreter: no lock or thread is inherited half-way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coral.core.generate.executors.options import ProcessesOptions


class WorkerProcesses(ProcessPoolExecutor):
    """A pool whose workers end at once, in the middle of their work, where its `with` block ends by an
    exception (Ctrl-C) or this process is gone: each watches a pipe that nobody writes to."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        watched, self._held = context.Pipe(duplex=False)
        super().__init__(workers, mp_context=context, initializer=_watch, initargs=(watched,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._held.close()
        self.shutdown(wait=True, cancel_futures=kind is not None)


def _watch(pipe: Connection) -> None:
    """First thing in a worker. Ctrl-C reaches all processes of a terminal: the parent acts on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()


def _end_with(pipe: Connection) -> None:
    pipe.poll(None)
    os._exit(1)


def build(options: ProcessesOptions) -> Executor:
    return WorkerProcesses(options.workers or len(os.sched_getaffinity(0)))
