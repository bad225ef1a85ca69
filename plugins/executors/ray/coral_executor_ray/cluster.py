"""The Ray cluster of a process. Ray allows one: executors share it, the last one leaves it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from coral.errors import PluginError

if TYPE_CHECKING:
    from coral_executor_ray.options import RayOptions

_lock = threading.Lock()
_holders = 0
_folder: str | None = None

OWN_CLUSTER = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for a cluster of one machine: bound to loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
}


def join(options: RayOptions) -> ModuleType:
    """Connect, or share the connection that is there; returns `ray`. Every call needs a `leave()`.

    Raises PluginError where no cluster can be had.
    """
    global _holders
    with _lock:
        ray = _imported(own=options.address is None)
        if not ray.is_initialized():
            try:
                _connect(ray, options)
            except Exception as error:  # Ray lets through what its parts raise
                _clear(ray)
                where = f"at {options.address}" if options.address else "on this machine"
                raise PluginError(
                    f"no Ray cluster can be had {where}: {error}",
                    mend="check executor.address, or use `executor: {use: processes}`",
                ) from error
            _holders = 0
        elif _holders == 0:  # somebody else's, who will end it
            _holders = 1
        _holders += 1
        return ray


def leave(ray: ModuleType) -> None:
    """The last one disconnects, which ends a cluster that was started here with all its processes."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _clear(ray)


def _imported(*, own: bool) -> ModuleType:
    if own and "ray" not in sys.modules:  # Ray reads them when it is first imported
        for name, value in OWN_CLUSTER.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    return ray


def _connect(ray: ModuleType, options: RayOptions) -> None:
    global _folder
    quiet = {"configure_logging": False, "log_to_driver": False}
    with _signals_kept():
        if options.address is not None:
            ray.init(address=options.address, runtime_env=options.runtime_env or None, **quiet)
            return
        _folder = tempfile.mkdtemp(prefix="coral-ray-")
        ray.init(
            address="local",
            num_cpus=options.num_cpus or len(os.sched_getaffinity(0)),
            include_dashboard=False,
            runtime_env=options.runtime_env or None,
            _temp_dir=_folder,
            **quiet,
        )


def _clear(ray: ModuleType) -> None:
    global _folder
    with _signals_kept():
        ray.shutdown()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
        _folder = None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; this process has its own ways to end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
