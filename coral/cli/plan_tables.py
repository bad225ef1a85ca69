"""A plan, and what differs between two, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from coral.cli.output import figure, print_table

if TYPE_CHECKING:
    from coral.core.plan.explain.changes import Changes, Pair
    from coral.core.plan.explain.what_if import Change
    from coral.types.placement import Stage
    from coral.types.plan import Plan


def show_plan(found: Plan) -> None:
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
    apart = len({one.market for one in found.instances}) > 1
    for one in found.instances:
        head: tuple[object, ...] = (
            one.template.model,
            one.template.phase,
            f"{one.domain} {one.market or 'any'}" if apart else one.domain,
            one.count,
            f"{figure(one.template.throughput)} {unit(one.template.phase)}",
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
                figure(s.demand),
                figure(s.served),
                figure(s.capacity),
                unit(s.phase),
                f"{s.fraction:.1%}",
            )
            for s in found.services
            if s.demand or s.capacity or not s.met  # of phases to choose from: those chosen
        ],
    )
    typer.echo(f"price           {found.price_usd_h:,.4f} USD/h")
    if found.initialization_usd_h:
        typer.echo(f"initialization  {found.initialization_usd_h:,.4f} USD/h, spread over its span")
    certificate = found.certificate
    cost_usd_h = found.price_usd_h + found.initialization_usd_h
    typer.echo(f"cost            {cost_usd_h if certificate is None else certificate.cost_usd_h:,.4f} USD/h")
    if certificate is None:
        typer.echo("bound           none: not proven")
    else:
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


def show_what_if(changes: tuple[Change, ...], both: Changes) -> None:
    """The changes asked for, and both plans side by side."""
    for change in changes:
        typer.echo(f"what if {change.path} were {_value(change.after)} and not {_value(change.before)}")
    _show_changes(both)


def show_diff(old: str, found: Changes) -> None:
    typer.echo("")
    if not found.changed:
        typer.echo(f"nothing changes against {old}")
        return
    typer.echo(f"what changes against {old}:")
    _show_changes(found)


def _show_changes(found: Changes) -> None:
    if found.machines:
        print_table(
            ("machines", "domain", "market", "before", "after", "USD/h"),
            [
                (m.machine_type, m.domain, m.market, m.before, _moved(m.before, m.after), _signed(m.usd_h))
                for m in found.machines
            ],
        )
    if found.instances:
        print_table(
            ("model", "phase", "domain", "nodes, stage by stage", "before", "after"),
            [
                (i.model, i.phase, i.domain, i.nodes, i.before, _moved(i.before, i.after))
                for i in found.instances
            ],
        )
    if found.services:
        print_table(
            ("model", "phase", "unit", "demand before", "after", "served before", "after"),
            [(s.model, s.phase, s.unit, *_pair(s.demand), *_pair(s.served)) for s in found.services],
        )
    for name, pair in (("price", found.price_usd_h), ("initialization", found.initialization_usd_h)):
        if not (pair.same and not pair.before):
            before, after = pair.before or 0.0, pair.after or 0.0
            typer.echo(f"{name:<15} {before:,.4f} → {after:,.4f} USD/h ({_signed(after - before)})")


def _value(number: float | None) -> str:
    return "without limit" if number is None else f"{number:.12g}"


def _pair(pair: Pair) -> tuple[str, str]:
    before, after = ("–" if one is None else figure(one) for one in (pair.before, pair.after))
    return before, after


def _moved(before: int, after: int) -> str:
    return f"{after} ({after - before:+d})" if after != before else str(after)


def _signed(usd_h: float) -> str:
    return f"{usd_h:+,.4f}" if abs(usd_h) >= 5e-5 else "0"


def _gap(gap: float) -> str:
    """Rounding of the last digits is no gap."""
    return f"{gap:.3g}" if gap > 1e-9 else "0"


def _nodes(stage: Stage) -> str:
    counts: dict[str, int] = {}
    for node in stage.nodes:
        name = f"{node.node_type}" + (f" (TP {node.tp})" if node.tp > 1 else "")
        counts[name] = counts.get(name, 0) + 1
    return " + ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())
