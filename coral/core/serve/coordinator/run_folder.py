"""The private folder of one run: sockets that only this user can reach, logs, what earlier runs left."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from coral.errors import UsageError

KEEP_RUNS = 5
SOCKET_PATH_BYTES = 90
"""The kernel takes about 107 bytes for the address of an ipc socket, ZeroMQ's included."""


class RunFolder:
    """`<state>/run/<pid>`, mode 0700. Raises UsageError where nothing can be written there."""

    def __init__(self, state: Path) -> None:
        runs = state / "run"
        self.path = runs / str(os.getpid())
        self.logs = self.path / "logs"
        self._sockets = self.path
        try:
            runs.mkdir(parents=True, exist_ok=True, mode=0o700)
            _prune(runs)
            shutil.rmtree(self.path, ignore_errors=True)  # of an earlier process that had this id
            self.path.mkdir(mode=0o700)
            self.logs.mkdir()
        except OSError as error:
            raise UsageError(
                f"state.folder: cannot write in {state}: {error.strerror}",
                mend="make room or give leave to write there, or choose another: --set state.folder=<folder>",
            ) from error
        if len(os.fsencode(self.path / "control")) > SOCKET_PATH_BYTES:
            self._sockets = Path(tempfile.mkdtemp(prefix="coral-"))

    def address(self, name: str) -> str:
        return f"ipc://{self._sockets / name}"

    def close(self) -> None:
        """Sockets go, logs stay until a few runs later."""
        for name in ("control", "tokens"):
            (self._sockets / name).unlink(missing_ok=True)
        if self._sockets != self.path:
            shutil.rmtree(self._sockets, ignore_errors=True)


def _prune(runs: Path) -> None:
    dead = [path for path in runs.iterdir() if not Path("/proc", path.name).exists()]
    dead.sort(key=lambda path: path.stat().st_mtime)
    for path in dead[: max(0, len(dead) - KEEP_RUNS)]:
        shutil.rmtree(path, ignore_errors=True)
