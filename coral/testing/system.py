"""Run a real `coral serve` in a test: a process of its own, found whole again in /proc, ended for certain."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coral.testing.guardian import Guardian, kill_marked, marked
from coral.testing.waiting import wait_until

PROGRAM = "from coral.cli.main import run; run()"
MARK = "CORAL_TEST_RUN"
"""Environment variable by which every process of one run is found, whoever started it."""


class ServingSystem:
    """A `coral serve` that was started, and all processes that came of it. None outlives this process."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] = {},
    ) -> None:
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self._guardian = Guardian(self.mark)
        self._folder = folder
        path = folder / "coral.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        self.log_path = folder / "serve.log"
        with self.log_path.open("wb") as log, (folder / "serve.out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "serve", "--config", str(path), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env, MARK: self.mark.partition("=")[2]},
                start_new_session=True,
            )

    # ------------------------------------------------------------ what it says

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def output(self) -> str:
        return (self._folder / "serve.out").read_text(errors="replace")

    @property
    def url(self) -> str | None:
        """Address of the front door once it is open."""
        found = re.search(r"front door at (http://\S+)", self.log())
        return found[1] if found else None

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON) of a GET; status 0 where nothing answers."""
        if self.url is None:
            return 0, None
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    def post(self, path: str, body: Any, timeout_s: float = 60.0) -> tuple[int, Any]:
        """(status, JSON) of a POST."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def status(self) -> dict[str, Any]:
        code, state = self.get("/coral/v1/status")
        assert code == 200, f"/coral/v1/status answers {code}\n{self.log()}"
        assert isinstance(state, dict)
        return state

    # ------------------------------------------------------------ waiting

    def wait_ready(self, within_s: float = 90.0) -> float:
        """Seconds until /ready says yes and all instances of the plan are up."""
        return self.wait(lambda: "Ready. Try" in self.output() or '"url"' in self.output(), within_s, "ready")

    def wait_said(self, words: str, within_s: float = 60.0) -> float:
        """Seconds until its log holds `words`."""
        return self.wait(lambda: words in self.log(), within_s, f"{words!r} in the log")

    def wait(self, condition: Any, within_s: float, what: str) -> float:
        """Seconds until `condition()`; AssertionError with the log where it does not come or serving ends."""

        def holds() -> bool:
            if condition():
                return True
            if self.process.poll() is not None:
                raise AssertionError(
                    f"coral serve ended with {self.process.returncode} before {what}:\n{self.log()}"
                )
            return False

        try:
            return wait_until(holds, within_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    # ------------------------------------------------------------ its end

    def processes(self) -> dict[int, str]:
        """All living processes of this run: pid and command line."""
        return marked(self.mark)

    def stop(self, number: signal.Signals = signal.SIGTERM, within_s: float = 30.0) -> int:
        """Signal it and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"coral serve did not end within {within_s:g} s\n{self.log()}") from None

    def wait_gone(self, within_s: float) -> float:
        """Seconds until no process of this run is left."""
        try:
            return wait_until(lambda: not self.processes(), within_s, "the end of all processes")
        except AssertionError as error:
            raise AssertionError(f"{error}; left: {self.processes()}\n{self.log()}") from None

    def kill_all(self) -> None:
        """Whatever is left, for the end of a test that has failed."""
        kill_marked(self.mark)
        self.process.wait(10)
        self._guardian.dismiss()


@contextmanager
def coral_serve(
    config: Mapping[str, Any], folder: Path, arguments: Sequence[str] = (), env: Mapping[str, str] = {}
) -> Iterator[ServingSystem]:
    """A running `coral serve`; whatever the test does, nothing of it outlives the block."""
    system = ServingSystem(config, folder, arguments, env)
    try:
        yield system
    finally:
        system.kill_all()
