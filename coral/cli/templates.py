"""`coral templates`: build the library of serving templates, and show the best of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coral.core.config import LoadedConfig
    from coral.core.generate.library import TemplateLibrary
    from coral.core.generate.ranking import Ranked
    from coral.types.hardware import Offer
    from coral.types.model import ModelSpec

UNITS = {"prefill": "tok/s", "decode": "tok/s", "mixed": "req/s"}


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Build and show the library of serving templates.")
    group.command("build")(build)
    group.command("show")(show)
    app.add_typer(group, name="templates")


def build(config: ConfigOption = DEFAULT_CONFIG, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Build what is missing of the template library for a config's models and its clouds' machines.

    Only what depends on something that changed is built anew; a build that was broken off goes on.

    Example: coral templates build --config examples/paper-core.yaml
    """
    _, library, _ = _library(open_session(config, sets))
    entries = list(library.manifest.entries.values())
    if as_json:
        told = [
            {
                "model": entry.model,
                "phase": entry.phase,
                "hash": entry.hash,
                "combinations": entry.combinations,
                "templates": entry.rows,
                "irreducible": entry.irreducible,
            }
            for entry in entries
        ]
        print_json({"folder": str(library.folder), "entries": told})
        return
    print_table(
        ("model", "phase", "combinations", "templates", "irreducible"),
        [
            (
                entry.model,
                entry.phase,
                f"{entry.combinations:,}",
                f"{entry.rows:,}",
                f"{entry.irreducible:,}",
            )
            for entry in entries
        ],
    )
    typer.echo(f"library in {library.folder}")


def show(
    model: Annotated[str, typer.Argument(help="Name of a model of the config.")],
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many of each phase.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Show the templates of a model that give most for their price, with their stages.

    A node is priced by its share of the cheapest machine on offer that can hold it.

    Example: coral templates show qwen3-32b --config examples/paper-core.yaml --top 5
    """
    from coral.core.generate.ranking import best_templates
    from coral.errors import UsageError

    session = open_session(config, sets)
    names = [section.name for section in session.config.models]
    if model not in names:
        raise UsageError(f"the config has no model {model!r}", mend=f"it has: {', '.join(names)}")
    models, library, offers = _library(session)
    spec = next(one for one in models if one.name == model)
    found = {phase: best_templates(library, model, phase, offers, top) for phase in spec.phases}
    if as_json:
        print_json(found)
        return
    for phase, ranked in found.items():
        _print(f"{model}, {phase}", UNITS[phase], ranked)


def _print(title: str, unit: str, ranked: Sequence[Ranked]) -> None:
    rows = [
        (
            f"{one.template.throughput:,.4g}",
            "" if one.price_usd_h is None else f"{one.price_usd_h:,.4g}",
            "" if one.per_usd is None else f"{one.per_usd:,.4g}",
            one.template.placement.picture(),
            one.template.id,
        )
        for one in ranked
    ]
    print_table((unit, "USD/h", f"{unit} per USD/h", "stages", "template"), rows, title=title)
    if not rows:
        typer.echo("no combination of nodes on offer can serve it within the SLO")


def _library(session: LoadedConfig) -> tuple[tuple[ModelSpec, ...], TemplateLibrary, list[Offer]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from coral.cli.market import ask_clouds
    from coral.core.generate.assemble import prepare

    offers, _, gpus = ask_clouds(session)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("templates", total=None)

        def progress(done: float, total: float, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        models, library = prepare(session.config, session.registry, offers, gpus, progress)
    return models, library, offers
