"""`coral templates`: build the library of serving templates, show the best of a model, plot them all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coral.cli.output import figure, print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coral.core.config import LoadedConfig
    from coral.core.generate.library import TemplateLibrary
    from coral.core.generate.ranking import Ranked
    from coral.types.hardware import Offer
    from coral.types.model import ModelSpec, Phase

UNITS = {"prefill": "tok/s", "decode": "tok/s", "mixed": "req/s"}


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Build, show and plot the library of serving templates.")
    group.command("build")(build)
    group.command("show")(show)
    group.command("plot")(plot)
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

    A node is priced by its share of the cheapest machine of one domain that can hold it. The exit code is 3
    where nothing on offer can serve the model.

    Example: coral templates show qwen3-32b --config examples/paper-core.yaml --top 5
    """
    from coral.core.generate.lacking import check_servable
    from coral.core.generate.ranking import best_templates

    spec, library, offers = _of_model(open_session(config, sets), model)
    found = {phase: best_templates(library, model, phase, offers, top) for phase in spec.phases}
    if as_json:
        print_json(found)
    else:
        for phase, ranked in found.items():
            _print(f"{model}, {phase}", UNITS[phase], ranked)
    check_servable(library, spec)


def plot(
    model: Annotated[str, typer.Argument(help="Name of a model of the config.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to draw into: .png, .svg or .pdf.")],
    config: ConfigOption = DEFAULT_CONFIG,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw what the templates of a model cost, which no other beats, and how much a dollar buys.

    Example: coral templates plot qwen3-32b --config examples/paper-core.yaml --out qwen3-32b.png
    """
    from coral.core.generate.lacking import check_servable
    from coral.core.generate.prices import template_prices
    from coral.core.report.figure import drawn, format_of
    from coral.core.report.templates import PricedTemplates, pareto, templates_figure
    from coral.errors import UsageError

    kind = format_of(out.name)
    spec, library, offers = _of_model(open_session(config, sets), model)
    check_servable(library, spec)
    priced: dict[Phase, PricedTemplates] = {}
    for phase in spec.phases:
        table = library.table(model, phase)
        priced[phase] = PricedTemplates(table=table, price_usd_h=template_prices(table, offers)[0])
    priced = {phase: one for phase, one in priced.items() if len(one.rows)}
    if not priced:
        raise UsageError("no template has a price above 0", mend="give the machines on offer their prices")
    out.write_bytes(drawn(templates_figure(model, priced), kind))
    if as_json:
        fronts = {
            phase: [
                {"usd_h": float(one.price_usd_h[row]), "throughput": float(one.table.throughput[row])}
                for row in one.rows[pareto(one.price_usd_h[one.rows], one.table.throughput[one.rows])]
            ]
            for phase, one in priced.items()
        }
        print_json({"out": str(out), "pareto": fronts})
    else:
        typer.echo(f"drawn into {out}")


def _print(title: str, unit: str, ranked: Sequence[Ranked]) -> None:
    rows = [
        (
            figure(one.template.throughput),
            "" if one.price_usd_h is None else f"{one.price_usd_h:,.4f}",
            "" if one.per_usd is None else figure(one.per_usd),
            one.template.placement.picture(),
            one.template.id,
        )
        for one in ranked
    ]
    if rows:
        print_table((unit, "USD/h", f"{unit} per USD/h", "stages", "template"), rows, title=title)


def _of_model(session: LoadedConfig, model: str) -> tuple[ModelSpec, TemplateLibrary, list[Offer]]:
    from coral.errors import UsageError

    names = [section.name for section in session.config.models]
    if model not in names:
        raise UsageError(f"the config has no model {model!r}", mend=f"it has: {', '.join(names)}")
    models, library, offers = _library(session)
    return next(one for one in models if one.name == model), library, offers


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
