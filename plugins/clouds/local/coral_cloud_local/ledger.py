"""Which agents run: a JSON file under a lock, shared by every deployment on this machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from coral.errors import CloudError
from coral.types.hardware import Machine
from coral_cloud_local.process import ProcessId

KEEP_LOGS = 50


class Rented(Struct, frozen=True, kw_only=True):
    """An agent. `owner` is the deployment's process that rented it."""

    machine: Machine
    order: str
    agent: ProcessId
    owner: ProcessId
    tags: dict[str, str] = {}


class Ledger:
    """Living agents only: those that have ended are dropped whenever the file is written.

    Raises CloudError where the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self) -> dict[str, Rented]:
        """By machine id. Writes nothing, so that a full disk stops nobody from giving machines back."""
        with self._locked(fcntl.LOCK_SH):
            return {one.machine.id: one for one in self._read() if one.agent.alive()}

    @contextmanager
    def open(self) -> Iterator[dict[str, Rented]]:
        """As `look`; what is changed inside is written when the block ends without an error."""
        with self._locked(fcntl.LOCK_EX):
            before = self._read()
            entries = {one.machine.id: one for one in before if one.agent.alive()}
            yield entries
            if list(entries.values()) != before:
                self._write(list(entries.values()))

    def new_log(self, machine: str) -> BinaryIO:
        """Where an agent writes; the oldest ones are dropped."""
        logs = self.folder / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            for old in sorted(logs.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEEP_LOGS]:
                old.unlink(missing_ok=True)
            return (logs / f"{machine}.log").open("wb")
        except OSError as error:
            raise self._fault(error) from error

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            raise self._fault(error) from error
        with lock:
            fcntl.flock(lock, how)
            yield

    def _fault(self, error: OSError) -> CloudError:
        return CloudError(
            f"local cloud: cannot write in {self.folder}: {error.strerror}",
            mend="make room or give leave to write there, or choose another `folder` in the cloud's options",
        )

    def _read(self) -> list[Rented]:
        path = self.folder / "machines.json"
        if not path.exists():
            return []
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[Rented])
        except (msgspec.DecodeError, RecursionError) as error:
            raise CloudError(
                f"local cloud: {path} is damaged: {error}",
                mend="end the agents it names, if any run, and delete it",
            ) from error

    def _write(self, entries: list[Rented]) -> None:
        path = self.folder / "machines.json"
        new = path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1))
            new.replace(path)
        except OSError as error:
            raise self._fault(error) from error
