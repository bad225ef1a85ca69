"""Which agents run: a JSON file under a lock, shared by every deployment on this machine."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from coral.errors import CloudError
from coral.types.hardware import Machine
from coral_cloud_local.process import ProcessId


class Rented(Struct, frozen=True, kw_only=True):
    """An agent. `owner` is the deployment's process that rented it."""

    machine: Machine
    order: str
    agent: ProcessId
    owner: ProcessId
    tags: dict[str, str] = {}


class Ledger:
    """Living agents only: those that have ended are dropped whenever the file is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def open(self) -> Iterator[dict[str, Rented]]:
        """By machine id; what is changed inside is written when the block ends without an error."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self._read()
            entries = {one.machine.id: one for one in before if one.agent.alive()}
            yield entries
            if list(entries.values()) != before:
                self._write(list(entries.values()))

    def _read(self) -> list[Rented]:
        path = self.folder / "machines.json"
        if not path.exists():
            return []
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[Rented])
        except msgspec.DecodeError as error:
            raise CloudError(
                f"local cloud: {path} is damaged: {error}",
                mend="end the agents it names, if any run, and delete it",
            ) from error

    def _write(self, entries: list[Rented]) -> None:
        path = self.folder / "machines.json"
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.format(msgspec.json.encode(entries), indent=1))
        new.replace(path)
