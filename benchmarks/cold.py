"""Run a part of a benchmark in a fresh process without compiled caches, and watch what it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

WATCH_S = 0.05


class ColdRun(Struct, frozen=True, kw_only=True):
    """`result` is what the process printed as JSON. Times are from its start to its end, its children's
    CPU included; memory is the greatest sum of resident bytes over the process and all below it."""

    result: Any
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


def run_cold(module: str, *arguments: str, timeout_s: float = 3600.0) -> ColdRun:
    """`python -m module arguments`, its numba cache empty. Raises RuntimeError where it fails."""
    with tempfile.TemporaryDirectory(prefix="coral-benchmark-") as folder:
        environment = os.environ | {
            "NUMBA_CACHE_DIR": f"{folder}/numba",
            "CORAL_BENCHMARKS": f"{folder}/libraries",
        }
        started = time.monotonic()
        before = os.times()
        printed = Path(folder, "printed")
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=out, env=environment
            )
        peak = 0
        try:
            while process.poll() is None:
                peak = max(peak, _resident_bytes(process.pid))
                if time.monotonic() - started > timeout_s:
                    raise RuntimeError(f"{module} {' '.join(arguments)} is not done after {timeout_s:g} s")
                time.sleep(WATCH_S)
        finally:
            process.kill()
            process.wait()
        wall_s, after = time.monotonic() - started, os.times()
        result = printed.read_bytes()
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed with exit code {process.returncode}")
    return ColdRun(
        result=msgspec.json.decode(result),
        wall_s=round(wall_s, 2),
        cpu_s=round(
            after.children_user + after.children_system - before.children_user - before.children_system, 2
        ),
        peak_rss_bytes=peak,
    )


def _resident_bytes(pid: int) -> int:
    total = 0
    try:
        tree = [psutil.Process(pid)]
        tree += tree[0].children(recursive=True)
    except psutil.Error:
        return 0
    for one in tree:
        try:
            total += one.memory_info().rss
        except psutil.Error:
            continue
    return total
