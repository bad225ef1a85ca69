"""`coral serve`: plan, rent, run, answer, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coral.cli.output import print_json
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig
    from coral.core.serve.coordinator.service import Stopping, Up
    from coral.types.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, rent and start nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve the models of a config over what its clouds rent out, through OpenAI's API.

    Ctrl-C, SIGTERM or the end of its terminal ends it in good order: no new requests, those in flight
    finish (up to serve.drain_timeout), machines are given back. A second Ctrl-C does not wait for requests.

    Example: coral serve --config examples/demo.yaml
    """
    session = open_session(config, sets)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(session, config.parent, dry_run=dry_run, as_json=as_json))


async def _serve(session: LoadedConfig, folder: Path, *, dry_run: bool, as_json: bool) -> None:
    from coral.cli.display import Display
    from coral.core.serve.coordinator import service
    from coral.core.serve.coordinator.journal import Journal

    stopping = service.Stopping()
    _stop_on_signals(stopping)
    journal = Journal()
    with Display() as display:
        journal.listen(display.entry)

        def up(up: Up) -> None:
            display.settled(f"serving at {up.url} (Ctrl-C ends it)")
            with contextlib.suppress(OSError):  # nobody reads it any longer; that ends no serving
                if as_json:
                    print_json({"url": up.url, "plan": up.plan})
                else:
                    typer.echo(_picture(up.plan))
                    typer.echo(_try_it(up))

        parts = (session.config, session.registry, folder, journal, display.templates, stopping)
        if not dry_run:
            await service.serve(*parts, up)
            return
        plan = await service.dry_run(*parts)
    if plan is not None:
        if as_json:
            print_json(plan)
        else:
            typer.echo(_picture(plan))


def _stop_on_signals(stopping: Stopping) -> None:
    """SIGINT and SIGTERM always end it: a script's background job inherits an ignored SIGINT, and whoever
    sends one means it. SIGHUP does unless it was ignored: under nohup it outlives its terminal."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stopping.ask)


def _picture(plan: Plan) -> str:
    """The plan for a person: what runs where, and what it costs."""
    lines = [""]
    for planned in plan.instances:
        template = planned.template
        count = f"{planned.count} × " if planned.count > 1 else ""
        lines.append(f"  {count}{template.model} ({template.phase}) in {planned.domain}")
        lines.append(f"      layers {template.placement.picture()}")
    machines = [f"{m.kept + m.new} × {m.machine_type} at ${m.price_usd_h:,.4g}/h" for m in plan.machines]
    lines.append(f"  machines: {', '.join(machines)}; in all ${plan.price_usd_h:,.4g}/h")
    return "\n".join(lines)


def _try_it(up: Up) -> str:
    """A command that a person can paste."""
    body = {
        "model": up.models[0],
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    data = json.dumps(body).replace("'", "'\\''")
    command = f"curl {up.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{data}'"
    return f"\nReady. Try:\n\n  {command}\n"
