"""The file: opened, brought to the current schema, read and written.

Write-ahead log, so that a reader (`coral plan history`) never stops the coordinator. A write outlives this
process as soon as it is made (`synchronous=NORMAL`), and costs no wait for the disk, in which streams would
stand still; what must outlive the loss of power as well, an order that a cloud is about to be sent, waits
for the disk (`lasting`).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from coral.core.serve.store.schema import MIGRATIONS
from coral.errors import StoreError

BUSY_S = 5.0
FILE = "coral.db"

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

T = TypeVar("T")
Value = str | int | float | bytes | None


class DamagedStore(StoreError):
    """The file is there and is no store."""


class Store:
    """Used by one thread. `on_fault` hears of writes that failed where the caller can go on without.

    Raises StoreError where the file cannot be opened or is of a later Coral, DamagedStore where it is no
    store. With `read_only` nothing is made and nothing can be written.
    """

    def __init__(
        self, path: Path, on_fault: Callable[[str], None] | None = None, *, read_only: bool = False
    ) -> None:
        self.path = path
        self._on_fault = on_fault or (lambda _: None)
        self._faulty = False
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = _reading(path) if read_only else _writing(path)
            self._check(self._connection)
            if not read_only:
                self._migrate(self._connection)
        except StoreError:
            self.close()
            raise
        except (sqlite3.Error, OSError) as error:
            self.close()
            damaged = getattr(error, "sqlite_errorcode", None) in DAMAGE
            raise (DamagedStore if damaged else StoreError)(
                f"the store {path} cannot be used: {error}",
                mend="move it away; machines are then found again through their clouds, instances start anew",
            ) from error

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

    def decoded(self, rows: Sequence[tuple[Value, ...]], kind: type[T]) -> list[T]:
        """Values of that kind from the rows' only column. One that is none (another Coral wrote it) is left
        out, which `on_fault` is told."""
        found: list[T] = []
        for (value,) in rows:
            try:
                found.append(msgspec.json.decode(str(value), type=kind))
            except (msgspec.DecodeError, RecursionError) as error:
                self._on_fault(f"a {kind.__name__} in the store {self.path} cannot be read: {error}")
        return found

    def write(self, sql: str, values: Sequence[Value] = (), *, lasting: bool = False) -> None:
        """Raises StoreError where it is not written; with `lasting`, where it is not on the disk."""
        try:
            connection = self._open()
            if lasting:
                connection.execute("PRAGMA synchronous=FULL")
            try:
                connection.execute(sql, values)
            finally:
                if lasting:
                    connection.execute("PRAGMA synchronous=NORMAL")
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

    def _check(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > len(MIGRATIONS):
            raise StoreError(
                f"the store {self.path} was written by a later Coral (schema {found}, "
                f"this one knows {len(MIGRATIONS)})",
                mend="use that Coral, or another state.folder",
            )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedStore(f"the store {self.path} is damaged: {verdict}", mend="move it away")

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found == len(MIGRATIONS):
            return
        with self.together():
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            for number, statements in enumerate(MIGRATIONS[found:], start=found + 1):
                for statement in statements:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number}")


def open_store(path: Path, on_fault: Callable[[str], None]) -> Store:
    """The coordinator's store, whatever has become of the file: one that is damaged is set aside and a new
    one begun, one that cannot be written is read. Either is told to `on_fault`.

    Raises StoreError where it is of a later Coral, or can be neither written nor read.
    """
    try:
        return Store(path, on_fault)
    except DamagedStore as damage:
        aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
        try:
            path.rename(aside)
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
            store = Store(path, on_fault)
        except (StoreError, OSError):
            raise damage from None
        on_fault(f"{damage.message}; it is kept as {aside.name}, and a new one is begun")
        return store
    except StoreError as error:
        if not path.exists():
            raise
        store = Store(path, on_fault, read_only=True)
        on_fault(f"{error.message}; it is only read: no machine can be rented until it can be written")
        return store


def _writing(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _reading(path: Path) -> sqlite3.Connection:
    """Where not even the log's index can be made (a full disk), what the log holds is missed."""
    for query in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{query}", uri=True, timeout=BUSY_S, isolation_level=None
        )
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            if "immutable" in query:
                raise
        else:
            return connection
    raise AssertionError("unreachable")
