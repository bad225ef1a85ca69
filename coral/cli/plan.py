"""`coral plan`: what to rent and run, what it costs, and how good that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from coral.cli.output import print_json, print_table
from coral.cli.session import DEFAULT_CONFIG, ConfigOption, JsonOption, SetOption, open_session

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig
    from coral.types.placement import Stage
    from coral.types.plan import Plan

INFEASIBLE = 3


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(config: ConfigOption = DEFAULT_CONFIG, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Decide what to rent and run for a config, and show what it costs. Nothing is rented.

    Exit code 3 where the demand cannot all be served: the best that can be had is shown, and what is missing.

    Example: coral plan --config examples/paper-core.yaml
    """
    found = _planned(open_session(config, sets))
    if as_json:
        from coral.core.plan.document import document

        print_json(document(found))
    else:
        _show(found)
    if not found.satisfied:
        raise typer.Exit(INFEASIBLE)


def _planned(session: LoadedConfig) -> Plan:
    from rich.console import Console

    from coral.cli.market import ask_clouds
    from coral.core.generate.assemble import prepare
    from coral.hookspecs.planner import Planner, View
    from coral.hookspecs.solver import Solver

    config, registry = session.config, session.registry
    console = Console(stderr=True)
    with console.status("asking the clouds") as status:
        offers, machines, gpus = ask_clouds(session)

        def progress(done: float, total: float, what: str) -> None:
            share = f"{done / total:.0%} " if total else ""
            status.update(f"templates: {share}{what}")

        models, library = prepare(config, registry, offers, gpus, progress)
        status.update("planning")
        planner: Planner = registry.build("planner", config.plan.planner.use, config.plan.planner.options)
        solver: Solver = registry.build("solver", config.solver.use, config.solver.options)
        view = View(
            models=models, offers=tuple(offers), machines=tuple(machines), options=config.plan_options()
        )
        return planner.plan(view, library, solver)


def _show(found: Plan) -> None:
    from coral.core.plan.document import unit

    print_table(
        ("machines", "domain", "market", "kept", "new", "USD/h each", "USD/h"),
        [
            (
                m.machine_type,
                m.domain,
                m.market,
                m.kept,
                m.new,
                f"{m.price_usd_h:,.4f}",
                f"{(m.kept + m.new) * m.price_usd_h:,.4f}",
            )
            for m in found.machines
        ],
    )
    rows: list[tuple[object, ...]] = []
    for one in found.instances:
        head: tuple[object, ...] = (
            one.template.model,
            one.template.phase,
            one.domain,
            one.count,
            f"{one.template.throughput:,.4g} {unit(one.template.phase)}",
        )
        for number, stage in enumerate(one.template.placement.stages):
            layers = f"[{stage.first_layer}, {stage.end_layer}) {stage.layers}"
            rows.append((*(head if number == 0 else ("",) * 5), layers, _nodes(stage)))
    print_table(("model", "phase", "domain", "instances", "each", "layers", "nodes"), rows)
    print_table(
        ("model", "phase", "demand", "served", "capacity", "unit", "served %"),
        [
            (
                s.model,
                s.phase,
                f"{s.demand:,.4g}",
                f"{s.served:,.4g}",
                f"{s.capacity:,.4g}",
                unit(s.phase),
                f"{s.fraction:.1%}",
            )
            for s in found.services
        ],
    )
    typer.echo(f"price           {found.price_usd_h:,.4f} USD/h")
    if found.initialization_usd_h:
        typer.echo(f"initialization  {found.initialization_usd_h:,.4f} USD/h, spread over its span")
    certificate = found.certificate
    if certificate is None:
        typer.echo("bound           none: not proven")
    else:
        typer.echo(f"cost            {certificate.cost_usd_h:,.4f} USD/h")
        typer.echo(
            f"bound           {certificate.bound_usd_h:,.4f} USD/h, gap {_gap(certificate.gap)} "
            f"({certificate.source})"
        )
        typer.echo(
            f"solved          in {certificate.seconds:.2f} s over {certificate.columns:,} columns; "
            f"{certificate.columns_full:,} ways to place a template"
        )
    for note in found.notes:
        typer.echo(f"note: {note}")


def _gap(gap: float) -> str:
    """Rounding of the last digits is no gap."""
    return f"{gap:.3g}" if gap > 1e-9 else "0"


def _nodes(stage: Stage) -> str:
    counts: dict[str, int] = {}
    for node in stage.nodes:
        name = f"{node.node_type}" + (f" (TP {node.tp})" if node.tp > 1 else "")
        counts[name] = counts.get(name, 0) + 1
    return " + ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())
