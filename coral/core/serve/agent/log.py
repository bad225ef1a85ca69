"""The output of one process: a log file of bounded size, and its last lines at hand."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

FILE_BYTES = 1 << 20
TAIL_BYTES = 4096


class BoundedLog:
    """Appends to `path`; when the file is full it becomes `path.1` and a new one starts.

    Never raises: where the file cannot be written (a full disk) its bytes are lost, what is lost is
    counted and said in the file once it can be, and the process whose output it is goes on.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self.lost = 0
        """Bytes that could not be written."""
        self._path = path
        self._limit = file_bytes
        self._file: FileIO | None = None
        self._size = 0
        self._gap = b""
        self._tail = b""

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        try:
            self._append(self._gap + data)
        except OSError as error:
            self.lost += len(data)
            self._gap = f"[{self.lost} bytes are lost: {error.strerror}]\n".encode()
            self.close()

    def tail(self, lines: int = 20) -> str:
        """The last lines written, at most `lines` and 4 KiB."""
        return "\n".join(self._tail.decode("utf-8", "replace").splitlines()[-lines:])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            self._size = self._file.tell()
        if self._size + len(data) > self._limit:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("wb", buffering=0)
            self._size = 0
            data = data[-self._limit :]
        self._file.write(data)
        self._size += len(data)
        self._gap = b""
