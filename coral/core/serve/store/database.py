"""The file: opened, brought to the current schema, read and written.

Write-ahead log, so that a reader (`coral plan history`) never stops the coordinator. `synchronous=FULL`:
what was said to a cloud is on the disk before it was said; a coordinator writes a few rows a minute.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coral.core.serve.store.schema import MIGRATIONS
from coral.errors import StoreError

BUSY_S = 5.0
FILE = "coral.db"

Value = str | int | float | bytes | None


class Store:
    """Used by one thread. `on_fault` hears of writes that failed where the caller can go on without.

    Raises StoreError where the file cannot be opened, is damaged, or is of a later Coral.
    """

    def __init__(self, path: Path, on_fault: Callable[[str], None] | None = None) -> None:
        self.path = path
        self._on_fault = on_fault or (lambda _: None)
        self._faulty = False
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.execute("PRAGMA foreign_keys=ON")
            self._migrate(self._connection)
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise StoreError(
                f"the store {path} cannot be used: {error}",
                mend="move it away; machines are then found again through their clouds, instances start anew",
            ) from error
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self, sql: str, values: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        """All rows. Raises StoreError."""
        try:
            return list(self._open().execute(sql, values))
        except sqlite3.Error as error:
            raise StoreError(f"the store {self.path} cannot be read: {error}") from error

    def write(self, sql: str, values: Sequence[Value] = ()) -> None:
        """Raises StoreError where it is not on the disk afterwards."""
        try:
            self._open().execute(sql, values)
        except sqlite3.Error as error:
            raise StoreError(
                f"the store {self.path} cannot be written: {error}",
                mend="make room or give leave to write there",
            ) from error

    def note(self, sql: str, values: Sequence[Value] = ()) -> bool:
        """Write what serving can go on without. False where that failed; the first of a row of failures
        is told to `on_fault`."""
        try:
            self.write(sql, values)
        except StoreError as error:
            if not self._faulty:
                self._on_fault(f"{error.message}; serving goes on, a restart will know less")
            self._faulty = True
            return False
        self._faulty = False
        return True

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside is written all or not at all. Raises StoreError."""
        self.write("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._open().rollback()
            raise
        self.write("COMMIT")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"the store {self.path} is closed")
        return self._connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        with self.together():
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            if found > len(MIGRATIONS):
                raise StoreError(
                    f"the store {self.path} was written by a later Coral (schema {found}, "
                    f"this one knows {len(MIGRATIONS)})",
                    mend="use that Coral, or another state.folder",
                )
            for number, statements in enumerate(MIGRATIONS[found:], start=found + 1):
                for statement in statements:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")
