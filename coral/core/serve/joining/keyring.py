"""The deployment's secret keys: files in the state folder that only their owner can read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from coral.core.serve.net.keys import KeyPair
from coral.errors import ProtocolError, UsageError

FOLDER = "keys"


class Keyring:
    """`<state>/keys`, mode 0700: a file for each secret, made when it is first wanted.

    Raises UsageError where one cannot be made, read, or kept from others.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def coordinator(self) -> KeyPair:
        return self._pair("coordinator")

    def plane(self, model: str) -> KeyPair:
        """Shared by the schedulers and workers of a model."""
        return self._pair(f"model-{hashlib.sha256(model.encode()).hexdigest()[:32]}")

    def _pair(self, name: str) -> KeyPair:
        path = self._folder / name
        try:
            if not path.exists():
                self._make(path)
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UsageError(
                    f"the key {path} can be read by others",
                    mend=f"chmod 600 {path}; was it read? Then delete it and let machines join anew",
                )
            return KeyPair.of_secret(path.read_text().strip())
        except OSError as error:
            raise UsageError(f"the key {path} cannot be used: {error.strerror}") from error
        except (ProtocolError, UnicodeDecodeError):
            raise UsageError(
                f"the key {path} is damaged",
                mend="delete it: a new one is made; machines that have joined must join anew",
            ) from None

    def _make(self, path: Path) -> None:
        """Whole or not at all; of several processes that make it at once one wins."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, new = tempfile.mkstemp(dir=self._folder)  # of mode 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(KeyPair.new().secret + "\n")
                file.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            Path(new).unlink()
