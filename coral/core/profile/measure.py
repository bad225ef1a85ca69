"""Time real steps of an engine in a process of its own, and remember the result on disk."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from coral.core.plugins.interpreter import in_environment
from coral.core.profile.files import write_atomically
from coral.errors import BrokenRun
from coral.hookspecs.engine import Engine, Launch
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Measurements


class MeasuringRun:
    """`coral.hookspecs.profiler.Measure` of one engine.

    Results lie in `<state>/measurements/`, one JSON file for each (shape, engine with its version,
    options and environment, dtype, threads, model of CPU); devices that differ only in memory share one.
    `python`: interpreter of the engine's own environment, where it has one.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        state: Path,
        *,
        options: Mapping[str, Any] | None = None,
        python: str | None = None,
        deadline_s: float = 300.0,
    ) -> None:
        self.engine = engine
        self.name = name
        self.options = dict(options or {})
        self.python = python
        self.folder = state / "measurements"
        self.deadline_s = deadline_s

    def __call__(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Measurements | None:
        """None where the engine cannot be measured on this machine. Raises BrokenRun on a failed run."""
        return self.kept(shape, gpu, dtype) or self.again(shape, gpu, dtype)

    def kept(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Measurements | None:
        """The result of an earlier run."""
        path = self.path(shape, gpu, dtype)
        if path.is_file():
            try:
                return msgspec.json.decode(path.read_bytes(), type=Measurements)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise BrokenRun(f"{path} is damaged: {error}", mend="delete it; it is made anew") from error
        return None

    def again(self, shape: ModelShape, gpu: Gpu, dtype: str, *, keep: bool = True) -> Measurements | None:
        """Measure, whatever is kept; the result replaces it, unless told otherwise."""
        launch = self.engine.measure(shape, gpu, dtype)
        if launch is None:
            return None
        measured = run(in_environment(launch, self.python, self.name), self.deadline_s)
        if not keep:
            return measured
        path = self.path(shape, gpu, dtype)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(measured), indent=1))
        return measured

    def path(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Path:
        version = self.engine.capabilities(shape, gpu).version
        environment = [self.python] if self.python else []
        key = msgspec.json.encode(
            [shape, self.name, version, self.options, dtype, gpu.threads, cpu_model(), *environment],
            order="sorted",
        )
        digest = hashlib.blake2b(key, digest_size=8).hexdigest()
        return self.folder / f"{self.name}-{shape.architecture}-{dtype}-{digest}.json"


def run(launch: Launch, deadline_s: float) -> Measurements:
    """Run a measuring process to its end; on the deadline its whole process group is ended."""
    what = " ".join(launch.argv[:4])
    process = subprocess.Popen(
        launch.argv,
        env={**os.environ, **launch.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise BrokenRun(
            f"measuring run {what!r} did not end within {deadline_s:g} s", mend="is the machine overloaded?"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        tail = err.decode(errors="replace").strip().splitlines()[-8:]
        raise BrokenRun("\n".join([f"measuring run {what!r} ended with status {process.returncode}:", *tail]))
    try:
        return msgspec.json.decode(out, type=Measurements)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BrokenRun(f"measuring run {what!r} printed no Measurements: {error}") from error


@cache
def cpu_model() -> str:
    """The CPU's model name as Linux has it; elsewhere what the platform module knows."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
