"""The worker: one process per node; it holds one stage in an engine and runs its steps."""

from __future__ import annotations

from collections.abc import Sequence


def command(
    *,
    scheduler: str,
    node: str,
    plugin_paths: Sequence[str] = (),
    host: str = "127.0.0.1",
    sockets: str = "",
    channel: str = "zmq",
    grace_s: float = 30.0,
) -> tuple[str, ...]:
    """Arguments after the interpreter (`-m coral.core.serve.worker …`) that start a worker.

    `scheduler` is the address in `SchedulerHello`, `node` its id in the `InstanceSpec`, `plugin_paths`
    are one-file plugins beside the config, `host` the pinned address of its machine, `sockets` the private
    folder of its sockets where it has no keys (see `net.plane`), `channel` how payloads go (`zmq`, `gloo`,
    `nccl`). A scheduler silent for `grace_s` seconds ends the worker.
    """
    paths = [argument for path in plugin_paths for argument in ("--plugin-path", path)]
    return (
        "-m",
        "coral.core.serve.worker",
        "--scheduler",
        scheduler,
        "--node",
        node,
        "--host",
        host,
        "--sockets",
        sockets,
        "--channel",
        channel,
        "--grace",
        str(grace_s),
        *paths,
    )
