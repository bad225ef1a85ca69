"""`coral plan`: what to rent and run, what it costs, why, and how good that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coral.cli.output import print_json
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.cli.planning import Ground
    from coral.core.plan.explain.what_if import WhatIf
    from coral.types.plan import Plan

INFEASIBLE = 3

WhatIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="PATH=VALUE",
        help="Plan as if a price, supply, demand or SLO were another, and compare; repeatable. For example "
        "'models.\"phi-4\".demand=12', 'models.\"phi-4\".slo.decode=80ms', "
        "'offers.\"aws/us-east-2:g6.xlarge:on_demand\".price=0.5' (or obtainable=8).",
    ),
]
SaveOption = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write the plan, as --json prints it: --save plan.json."),
]
DiffOption = Annotated[
    Path | None,
    typer.Option(
        "--diff", metavar="OLD", help="What changes against a plan that was saved: --diff plan.json."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    what_ifs: WhatIfOption = None,
    save: SaveOption = None,
    diff: DiffOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what to rent and run for a config, and show what it costs. Nothing is rented.

    Exit code 3 where the demand cannot all be served: the best that can be had is shown, and what is
    missing. With --what-if it is the plan after the change that is saved, compared, and exits so.

    Example: coral plan --config examples/paper-core.yaml
    """
    from coral.core.plan.document import as_saved, document, read_document
    from coral.core.plan.explain.changes import changes

    old = read_document(diff) if diff is not None else None
    before, found, asked = _planned(config, sets, what_ifs or [])
    printed: dict[str, Any] = document(found)
    if save is not None:
        _save(save, printed)
    if asked is not None:
        printed["what_if"] = {
            "changes": asked.changes,
            "before": document(before),
            "difference": changes(as_saved(before), as_saved(found)),
        }
    difference = changes(old, as_saved(found)) if old is not None else None
    if difference is not None:
        printed["diff"] = difference
    if as_json:
        print_json(printed)
    else:
        from coral.cli.plan_tables import show_diff, show_plan, show_what_if
        from coral.core.plan.explain.changes import side_by_side

        show_plan(found)
        if asked is not None:
            show_what_if(asked.changes, side_by_side(as_saved(before), as_saved(found)))
        if difference is not None:
            show_diff(str(diff), difference)
    if not found.satisfied:
        raise typer.Exit(INFEASIBLE)


def _planned(config: Path, sets: list[str] | None, what_ifs: list[str]) -> tuple[Plan, Plan, WhatIf | None]:
    """The plan as things are, and as they would be; the same one where nothing was asked."""
    from rich.console import Console

    from coral.cli.planning import gather
    from coral.core.plan.explain.what_if import what_if

    session = open_session(config, sets)
    with Console(stderr=True).status("reading the config") as status:
        ground: Ground = gather(session, status.update)
        asked = what_if(ground.view, what_ifs) if what_ifs else None
        status.update("planning")
        before = ground.planner.plan(ground.view, ground.library, ground.solver)
        if asked is None:
            return before, before, None
        library = ground.rebuilt(asked.view) if asked.rebuilt else ground.library
        status.update("planning as if")
        return before, ground.planner.plan(asked.view, library, ground.solver), asked


def _save(path: Path, printed: dict[str, Any]) -> None:
    import msgspec

    from coral.core.profile.files import write_atomically
    from coral.errors import CoralError

    try:
        write_atomically(path.absolute(), msgspec.json.format(msgspec.json.encode(printed), indent=2))
    except CoralError as error:
        raise CoralError(error.message, mend="give --save a file in a folder that can be written") from error
