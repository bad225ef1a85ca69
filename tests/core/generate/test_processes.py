"""The built-in executor: no worker outlives what started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from pathlib import Path

import pytest

from coral.core.generate.executors.options import ProcessesOptions
from coral.core.generate.executors.processes import build
from coral.testing.executor import ExecutorContract
from coral.testing.processes import alive

WORKER_S = 60.0
"""How long a worker would go on by itself."""
SOON_S = 20.0


class TestProcesses(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return build(ProcessesOptions(workers=1))


def gone(pid: int) -> bool:
    deadline = time.monotonic() + SOON_S
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_workers_end_in_the_middle_of_their_work_on_ctrl_c() -> None:
    started = time.monotonic()
    workers = []

    def interrupted() -> None:
        with build(ProcessesOptions(workers=1)) as pool:
            workers.append(pool.submit(os.getpid).result(SOON_S))
            pool.submit(time.sleep, WORKER_S)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(workers[0])
    assert time.monotonic() - started < WORKER_S / 2


def test_a_block_that_ends_well_waits_for_its_work() -> None:
    with build(ProcessesOptions(workers=1)) as pool:
        future = pool.submit(time.sleep, 0.2)
    assert future.done()
    assert future.exception() is None


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    with build(ProcessesOptions(workers=1)) as pool:
        assert pool.submit(signal.getsignal, signal.SIGINT).result(SOON_S) == signal.SIG_IGN


PARENT = """
import os, time
from coral.core.generate.executors.options import ProcessesOptions
from coral.core.generate.executors.processes import build
if __name__ == "__main__":
    pool = build(ProcessesOptions(workers=1))
    print(pool.submit(os.getpid).result(20), flush=True)
    pool.submit(time.sleep, 60).result()
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
    finally:
        parent.kill()
        parent.communicate()
    assert gone(worker)
