"""`coral status`: what a running system does, from its front door."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import JsonOption
from coral.errors import CoralError

TIMEOUT_S = 10.0


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    url: Annotated[str, typer.Option("--url", help="Address of the front door.")] = "http://127.0.0.1:8000",
    as_json: JsonOption = False,
) -> None:
    """Show models, machines, instances with their stages, nodes and loads, and what the plan costs.

    Example: coral status --url http://127.0.0.1:8000
    """
    state = fetch(url)
    if as_json:
        print_json(state)
        return
    plan = state["plan"]
    cost = f"${plan['price_usd_h']:,.4g}/h" if plan else "no plan yet"
    requests = state["requests"]
    typer.echo(
        f"{state['phase']}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(state['since_s']))} "
        f"({state['uptime_s']:,.0f} s), pid {state['pid']}, {cost}, "
        f"{requests['in_flight']} requests in flight, {requests.get('finished', 0)} finished"
    )
    adopted = state["adopted"]
    if adopted["machines"]:
        typer.echo(
            f"took over {len(adopted['machines'])} machines and {len(adopted['instances'])} instances of an "
            f"earlier run at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(adopted['at_s']))}"
        )
    print_table(
        ("model", "ready", "longest request"),
        [(m["name"], "yes" if m["ready"] else "no", m["max_request_tokens"]) for m in state["models"]],
    )
    print_table(
        ("machine", "type", "state", "$/h", "agent"),
        [(m["id"], m["type"], m["state"], m["price_usd_h"], m["agent_pid"]) for m in state["machines"]],
    )
    print_table(
        (
            "instance",
            "state",
            "load",
            "layers",
            "node",
            "on",
            "devices",
            "weight",
            "requests",
            "waits",
            "pid",
        ),
        [row for instance in state["instances"] for row in _rows(instance)],
    )


def fetch(url: str) -> dict[str, Any]:
    """The status of the system at `url`. Raises CoralError where there is none."""
    address = f"{url.rstrip('/')}/coral/v1/status"
    if not address.startswith(("http://", "https://")):
        raise CoralError(f"{url} is no HTTP address", mend="for example --url http://127.0.0.1:8000")
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            state: dict[str, Any] = json.load(answer)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CoralError(
            f"nothing answers at {url}: {reason}", mend="is `coral serve` running? say where with --url"
        ) from error
    return state


def _rows(instance: dict[str, Any]) -> list[tuple[object, ...]]:
    """One row a node; the instance is named in the first."""
    rows: list[tuple[object, ...]] = []
    for stage in instance["stages"]:
        layers = f"[{stage['first_layer']},{stage['end_layer']})"
        for node in stage["nodes"]:
            head = ("", "", "") if rows else (instance["id"], instance["state"], instance["load"])
            devices = ",".join(map(str, node["devices"]))
            rows.append(
                (
                    *head,
                    layers,
                    node["node"].rpartition("/")[2],
                    node["machine"],
                    f"{node['node_type']} ({devices})",
                    f"{node['weight']:.3g}",
                    node["picks"],
                    _waits(node.get("engine", {})),
                    node["pid"],
                )
            )
    if instance["reason"] and rows:
        rows.append(("", instance["reason"].splitlines()[0][:60], *[""] * 9))
    return rows


def _waits(engine: dict[str, Any]) -> str:
    """The share of its time that a worker had nothing to run, or could not send on what it would run."""
    seconds = engine.get("seconds", 0.0)
    return f"{engine['wait_seconds'] / seconds:.0%}" if seconds else ""
