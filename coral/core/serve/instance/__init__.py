"""The scheduler: one process per instance; it admits, owns the KV ledger of the route, and dispatches."""

from __future__ import annotations


def command(
    *,
    coordinator: str,
    instance: str,
    generation: int,
    host: str = "127.0.0.1",
    sockets: str = "",
    start_timeout_s: float = 600.0,
    silence_s: float = 8.0,
    grace_s: float = 30.0,
) -> tuple[str, ...]:
    """Arguments after the interpreter (`-m coral.core.serve.instance …`) that start a scheduler.

    `coordinator` is the coordinator's control address, `host` the pinned address of its machine, `sockets`
    the private folder of its sockets where it has no keys (see `net.plane`). A worker silent for `silence_s`
    seconds is dead; workers get `start_timeout_s` to appear, load and connect; a coordinator silent for
    `grace_s` ends the instance.
    """
    return (
        "-m",
        "coral.core.serve.instance",
        "--coordinator",
        coordinator,
        "--instance",
        instance,
        "--generation",
        str(generation),
        "--host",
        host,
        "--sockets",
        sockets,
        "--start-timeout",
        str(start_timeout_s),
        "--silence",
        str(silence_s),
        "--grace",
        str(grace_s),
    )


def identity(instance: str, generation: int, ticket: str = "") -> str:
    """The name under which a scheduler dials: one of an earlier coordinator's instances never takes the place
    of a later one of the same name. On another machine its ticket is part of it, so that nobody else can
    take its place."""
    return f"{instance}#{generation}" + (f"#{ticket}" if ticket else "")
