"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from coral.errors import CoralError

MEND = "check `state.folder` in the config: that it is a folder, its rights, the room on its disk"


def write_atomically(path: Path, content: bytes, *, mend: str = MEND) -> None:
    """Write beside `path`, flush to disk, and rename over it; makes the folder.

    Raises CoralError where the disk or its rights do not allow it; nothing half-written is left.
    """
    try:
        _write(path, content)
    except OSError as error:
        raise CoralError(f"cannot write {path}: {error.strerror or error}", mend=mend) from error


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
