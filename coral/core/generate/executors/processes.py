"""Worker processes on this machine, each a fresh interpreter: no lock or thread is inherited half-way."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coral.core.generate.executors.options import ProcessesOptions


def build(options: ProcessesOptions) -> Executor:
    workers = options.workers or len(os.sched_getaffinity(0))
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
