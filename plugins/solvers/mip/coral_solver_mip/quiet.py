"""CBC prints what it thinks of a linear program, whatever its log level is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()


@contextmanager
def silenced(silent: bool) -> Iterator[None]:
    """Send file descriptor 1 to nowhere: what a program prints there may be parsed by another."""
    if not silent:
        yield
        return
    with _lock:
        sys.stdout.flush()
        saved = os.dup(1)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)
            os.close(nowhere)
