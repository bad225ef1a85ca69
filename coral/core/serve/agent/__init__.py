"""The agent: the process on a machine that starts and ends schedulers and workers there.

It needs the bare install only (msgspec, pyzmq). It dials the coordinator, does what it is told, and
ends everything it started when the coordinator has been silent for longer than the grace time.
"""

from __future__ import annotations

import sys
from pathlib import Path

MODULE = "coral.core.serve.agent"


def command(coordinator: str, *, grace_s: float, logs: Path, python: str = sys.executable) -> tuple[str, ...]:
    """The agent's argv, complete except for `--machine`, which the cloud appends.

    `coordinator` is the ZeroMQ address of its control socket; `logs` a folder on the machine.
    """
    return (
        python,
        "-m",
        MODULE,
        "--coordinator",
        coordinator,
        "--grace",
        f"{grace_s:g}",
        "--logs",
        str(logs),
    )
