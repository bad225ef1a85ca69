"""The private folder of a coordinator: sockets that only this user can reach, logs, the lock.

Its place depends on the state folder alone, so that whatever an earlier coordinator has started finds a
later one at the same addresses.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from io import FileIO
from pathlib import Path

from coral.errors import UsageError

KEEP_LOGS = 300
"""Log files; the oldest go. Each is of bounded size."""
SOCKETS = ("control", "tokens")
SOCKET_PATH_BYTES = 90
"""The kernel takes about 107 bytes for the address of an ipc socket, ZeroMQ's included."""
OTHER_FOLDER = "choose another: --set state.folder=<folder>"


class RunFolder:
    """`<state>/run`, mode 0700, held by one coordinator at a time; `passing` ones (a dry run) have a folder
    of their own that goes with them.

    Raises UsageError where nothing can be written there, or where another coordinator holds it.
    """

    def __init__(self, state: Path, *, passing: bool = False) -> None:
        self._passing = passing
        self._lock: FileIO | None = None
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            runs = state / "run"
            runs.mkdir(exist_ok=True, mode=0o700)
            self.path = Path(tempfile.mkdtemp(prefix="dry-", dir=runs)) if passing else runs
            self.path.chmod(0o700)
            if not passing:
                self._lock = _locked(runs / "lock", state)
            self.logs = self.path / "logs"
            self.logs.mkdir(exist_ok=True)
            _prune(self.logs)
        except OSError as error:
            self._unlock()
            raise UsageError(
                f"state.folder: cannot write in {state}: {error.strerror}",
                mend=f"make room or give leave to write there, or {OTHER_FOLDER}",
            ) from error
        try:
            self._sockets = _sockets(self.path)
            _forget_dead(self._sockets)
        except BaseException:
            self._unlock()
            raise

    @property
    def sockets(self) -> Path:
        """Where every process of this machine has its sockets."""
        return self._sockets

    def address(self, name: str) -> str:
        return f"ipc://{self._sockets / name}"

    def close(self) -> None:
        """Sockets go, logs stay, another coordinator may come."""
        for path in self._sockets.iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)
        if self._sockets != self.path:
            shutil.rmtree(self._sockets, ignore_errors=True)
        if self._passing:
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def deployment_name(state: Path) -> str:
    """By which clouds tell this deployment's machines from others': of 12 hexadecimal digits.

    Kept in the state folder, so that it moves with it; made of host and folder, so that a folder that was
    deleted leads to the same machines again.
    """
    file = state / "deployment"
    with contextlib.suppress(OSError):  # there is none yet, or it cannot be read: it is made again
        if name := file.read_text().strip():
            return name
    name = hashlib.sha256(f"{socket.gethostname()}:{state.resolve()}".encode()).hexdigest()[:12]
    with contextlib.suppress(OSError):  # as long as the folder stays, the next one makes the same name
        file.write_text(name + "\n")
    return name


def _locked(path: Path, state: Path) -> FileIO:
    """The lock, with our process id written in it; the kernel frees it however this process ends."""
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read(32).decode(errors="replace").strip() or "unknown"
        file.close()
        raise UsageError(
            f"state.folder: another coordinator, pid {holder}, runs on {state}",
            mend=f"end it first, or {OTHER_FOLDER}",
        ) from None
    with contextlib.suppress(OSError):  # a full disk: who holds the lock cannot be told, but it is held
        os.pwrite(file.fileno(), f"{os.getpid()}\n".encode().ljust(32), 0)
    return file


def _sockets(path: Path) -> Path:
    """`path`, or where that is too long for the kernel a short folder that belongs to it."""
    if len(os.fsencode(path / SOCKETS[0])) <= SOCKET_PATH_BYTES:
        return path
    mark = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"coral-{os.getuid()}-{mark}"
    short.mkdir(exist_ok=True, mode=0o700)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(
            f"state.folder: {short}, where its sockets would lie, is somebody else's",
            mend="choose a state.folder with a shorter path: --set state.folder=<folder>",
        )
    return short


def _forget_dead(sockets: Path) -> None:
    """Sockets of schedulers and workers that have ended without closing them; see `net.plane`."""
    for path in sockets.iterdir():
        number = path.name[1:]
        if path.is_socket() and number.isdecimal() and not Path("/proc", number).exists():
            path.unlink(missing_ok=True)


def _prune(logs: Path) -> None:
    files = sorted(logs.iterdir(), key=lambda path: path.lstat().st_mtime)
    for path in files[: max(0, len(files) - KEEP_LOGS)]:
        path.unlink(missing_ok=True)
