"""The output of one process: a log file of bounded size, and its last lines at hand."""

from __future__ import annotations

from pathlib import Path

FILE_BYTES = 1 << 20
TAIL_BYTES = 4096


class BoundedLog:
    """Appends to `path`; when the file is full it becomes `path.1` and a new one starts."""

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._limit = file_bytes
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()
        self._tail = b""

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._size + len(data) > self._limit:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("wb", buffering=0)
            self._size = 0
            data = data[-self._limit :]
        self._file.write(data)
        self._size += len(data)

    def tail(self, lines: int = 20) -> str:
        """The last lines written, at most `lines` and 4 KiB."""
        return "\n".join(self._tail.decode("utf-8", "replace").splitlines()[-lines:])

    def close(self) -> None:
        self._file.close()
