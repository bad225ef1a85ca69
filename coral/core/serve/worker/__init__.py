"""The worker: one process per node; it holds one stage in an engine and runs its steps."""

from __future__ import annotations

from collections.abc import Sequence


def command(
    *,
    scheduler: str,
    node: str,
    plugin_paths: Sequence[str] = (),
    host: str = "127.0.0.1",
    channel: str = "zmq",
    grace_s: float = 30.0,
) -> tuple[str, ...]:
    """Arguments after the interpreter (`-m coral.core.serve.worker …`) that start a worker.

    `scheduler` is the address in `SchedulerHello`, `node` its id in the `InstanceSpec`, `plugin_paths`
    are one-file plugins beside the config, `host` the address its data socket binds, `channel` how
    payloads go (`zmq`, `gloo`, `nccl`). A scheduler silent for `grace_s` seconds ends the worker.
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
        "--channel",
        channel,
        "--grace",
        str(grace_s),
        *paths,
    )
