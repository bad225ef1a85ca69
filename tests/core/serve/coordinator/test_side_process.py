from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from coral.core.serve.coordinator.side_process import SideProcess
from coral.core.serve.process_tree import descendants
from coral.testing.processes import alive
from coral.testing.waiting import until, wait_until


def gone(pid: int) -> bool:
    return not alive(pid)


def test_its_end_takes_everything_below_it_along_whatever_it_ignores(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'], start_new_session=True)\n"
        "print('up', file=sys.stderr, flush=True)\n"
        "time.sleep(120)\n"
    )

    async def run() -> list[int]:
        process = await SideProcess.start((sys.executable, "-c", code), tmp_path / "log")
        await until(lambda: "up" in process.tail(), 20)
        below = descendants(process.pid)
        assert len(below) == 1
        await process.end(grace_s=0.2)
        await process.end()
        assert process.returncode == -9
        return [process.pid, *below]

    pids = asyncio.run(run())
    wait_until(lambda: all(gone(pid) for pid in pids), 5)


def test_output_is_kept_in_a_log(tmp_path: Path) -> None:
    async def run() -> tuple[int, str]:
        code = "import sys; print('reason', file=sys.stderr); sys.exit(4)"
        process = await SideProcess.start((sys.executable, "-c", code), tmp_path / "log")
        return await process.wait(), process.tail()

    assert asyncio.run(run()) == (4, "reason")
    assert (tmp_path / "log").read_text() == "reason\n"
