"""`coral plan history`: the plans that `coral serve` has carried out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from coral.cli.output import figure, print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session


def history(
    number: Annotated[int | None, typer.Argument(help="Show this plan whole.", show_default=False)] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    newest: Annotated[int, typer.Option("--newest", min=1, help="How many to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the plans that were carried out from the config's state folder, newest first, or show one whole.

    Example: coral plan history --newest 5
    """
    from coral.core.serve.store.history import history, past_plan, summary, whole

    state = Path(open_session(config, sets).config.state.folder)
    if number is not None:
        record = past_plan(state, number)
        if as_json:
            print_json(whole(record))
        else:
            from coral.cli.plan_tables import show_plan

            typer.echo(f"plan {record.number}, {_when(record.made_s)}: {record.reason}")
            show_plan(record.plan)
        return
    listed = [summary(record) for record in history(state, newest=newest)]
    if as_json:
        print_json(listed)
    elif not listed:
        typer.echo(f"no plan was carried out from {state} yet")
    else:
        print_table(
            ("plan", "made", "for", "planner", "machines", "instances", "USD/h", "unmet"),
            [_row(one) for one in listed],
        )


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    return (
        one["number"],
        _when(one["made_s"]),
        one["reason"],
        one["planner"],
        one["machines"],
        one["instances"],
        figure(one["price_usd_h"]),
        ", ".join(one["unmet"]) or "-",
    )


def _when(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
