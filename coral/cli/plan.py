"""`coral plan`: what to rent and run, what it costs, why, and how good that is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from coral.cli.output import print_json
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.core.plan.explain.explanation import Explanation
    from coral.core.plan.explain.mend import Mend
    from coral.core.plan.explain.what_if import WhatIf
    from coral.types.plan import Plan

INFEASIBLE = 3
LEAST_MENDING_S = 5.0
"""For what would mend a plan, where the time limit leaves less."""

ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Say why each part is there, which limits bind, and what changes of them are worth, each solved "
        "again: --explain --top 5.",
    ),
]
TopOption = Annotated[
    int, typer.Option("--top", min=0, help="How many of each kind --explain solves again: --top 5.")
]

WhatIfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="PATH=VALUE",
        help="Plan as if a price, supply, demand or SLO were another, and compare; repeatable. For example "
        "'models.\"phi-4\".demand=12', 'models.\"phi-4\".slo.decode=80ms', "
        "'offers.\"here/r:big:spot\".price=0.5'; docs/explain.md lists all.",
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
    from coral.cli.plan_history import history

    group = typer.Typer(invoke_without_command=True)
    group.callback()(plan)
    group.command("history")(history)
    app.add_typer(group, name="plan")


def plan(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    explain: ExplainOption = False,
    top: TopOption = 3,
    what_ifs: WhatIfOption = None,
    save: SaveOption = None,
    diff: DiffOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what to rent and run for a config, and show what it costs. Nothing is rented.

    Exit code 3 where the demand cannot all be served: the best that can be had is shown, what is missing,
    and the least changes that would mend it. With --what-if it is the plan after the change that is
    explained, saved, compared, and that gives the exit code. Solving takes at most the solver's
    time_limit, --what-if and --explain as long again.

    Example: coral plan --config examples/paper-core.yaml --explain
    """
    if context.invoked_subcommand is not None:
        return
    from coral.core.plan.document import as_saved, document, read_document
    from coral.core.plan.explain.changes import changes, side_by_side

    old = read_document(diff) if diff is not None else None
    made = _made(config, sets, what_ifs or [], top if explain else None)
    printed: dict[str, Any] = document(made.plan)
    if made.explanation is not None:
        printed["explanation"] = made.explanation
    if not made.plan.satisfied:
        printed["mends"] = made.mends
    if save is not None:
        _save(save, printed)
    if made.asked is not None:
        printed["what_if"] = {
            "changes": made.asked.changes,
            "before": document(made.before),
            "difference": changes(as_saved(made.before), as_saved(made.plan)),
        }
    difference = changes(old, as_saved(made.plan)) if old is not None else None
    if difference is not None:
        printed["diff"] = difference
    if as_json:
        print_json(printed)
    else:
        from coral.cli.explain_tables import show_explanation, show_mends
        from coral.cli.plan_tables import show_diff, show_plan, show_what_if

        show_plan(made.plan)
        if made.asked is not None:
            show_what_if(made.asked.changes, side_by_side(as_saved(made.before), as_saved(made.plan)))
        if made.explanation is not None:
            show_explanation(made.explanation)
        if not made.plan.satisfied:
            show_mends(made.mends)
        if difference is not None:
            show_diff(str(diff), difference)
    if not made.plan.satisfied:
        raise typer.Exit(INFEASIBLE)


class _Made(NamedTuple):
    """`before` is the plan as things are, `plan` as they would be; the same where nothing was `asked`."""

    before: Plan
    plan: Plan
    asked: WhatIf | None
    explanation: Explanation | None
    mends: tuple[Mend, ...]


def _made(config: Path, sets: list[str] | None, what_ifs: list[str], top: int | None) -> _Made:
    from msgspec.structs import replace
    from rich.console import Console

    from coral.cli.planning import gather
    from coral.core.plan.explain.explanation import explain
    from coral.core.plan.explain.mends import mends
    from coral.core.plan.explain.solves import Solves
    from coral.core.plan.explain.what_if import what_if

    session = open_session(config, sets)
    with Console(stderr=True).status("reading the config") as status:
        ground = gather(session, status.update)
        view, library, planner, solver, rebuilt, hopeless = ground
        asked = what_if(view, what_ifs) if what_ifs else None
        status.update("planning")
        started = time.monotonic()
        before = found = planner.plan(view, library, solver)
        if asked is not None:
            library = rebuilt(asked.view) if asked.rebuilt else library
            view = asked.view
            status.update("planning as if")
            started = time.monotonic()
            found = planner.plan(view, library, solver)
        limit = view.options.time_limit_s
        left = None if limit is None else max(LEAST_MENDING_S, limit - (time.monotonic() - started))
        mended: tuple[Mend, ...] = ()
        if not found.satisfied:
            status.update("looking for what would mend it")
            found = replace(found, notes=(*found.notes, *hopeless(view)))
            solves = Solves(planner, solver, clock=time.monotonic, limit_s=left)
            mended = mends(view, library, found, solves, rebuilt=rebuilt)
        explanation = None
        if top is not None:
            status.update("explaining")
            solves = Solves(planner, solver, clock=time.monotonic, limit_s=limit)
            explanation = explain(view, library, found, solves, few=top, rebuilt=rebuilt)
    return _Made(before, found, asked, explanation, mended)


def _save(path: Path, printed: dict[str, Any]) -> None:
    import msgspec

    from coral.core.profile.files import write_atomically
    from coral.errors import CoralError

    try:
        write_atomically(path.absolute(), msgspec.json.format(msgspec.json.encode(printed), indent=2))
    except CoralError as error:
        raise CoralError(error.message, mend="give --save a file in a folder that can be written") from error
