"""An explanation of a plan, and what would mend one, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from coral.cli.output import print_table

if TYPE_CHECKING:
    from coral.core.plan.explain.constraints import Constraint
    from coral.core.plan.explain.explanation import Answer, Explanation
    from coral.core.plan.explain.mend import Mend
    from coral.core.plan.explain.reasons import Price

MOST_SHOWN = 20
"""Limits that are listed one by one."""


def show_explanation(found: Explanation) -> None:
    print_table(
        ("model", "phase", "count", "nodes", "USD/h each", "per unit", "next best by price", "per unit"),
        [
            (
                one.model,
                one.phase,
                one.count,
                f"{one.price.nodes}\n{one.price.domain}",
                f"{one.price.usd_h:,.4f}",
                f"{one.price.per_unit:,.4g} {one.unit}",
                "none can be hosted" if one.next_best is None else _next_best(one.next_best),
                "" if one.next_best is None else f"{one.next_best.per_unit:,.4g}",
            )
            for one in found.instances
        ],
        title="\nwhy these instances",
    )
    print_table(
        ("machines", "domain", "market", "count", "USD/h", "GPUs used", "serve"),
        [
            (
                one.machine_type,
                one.domain,
                one.market,
                one.count,
                f"{one.usd_h:,.4f}",
                f"{one.gpus_used} of {one.gpus}",
                ", ".join(one.serves),
            )
            for one in found.machines
        ],
        title="why these machines",
    )
    _show_constraints(found.constraints)
    _show_answers(found, "offer", "what one more of an offer is worth")
    _show_answers(found, "demand", "what one more request/s costs")
    _show_answers(found, "machine", "what one planned machine less would cost")
    _show_answers(found, "template", "second best for each service: its main template forbidden")
    _show_answers(found, "slo", "what a latency limit costs")
    limit = "" if found.limit_s is None else f" of at most {found.limit_s:g} s"
    typer.echo(f"{found.solves} plans were solved again in {found.seconds:.1f} s{limit}.")
    if any(one.figure is None for one in found.answers):
        typer.echo("Where it says estimate only, the time did not suffice: raise solver.time_limit.")


def _next_best(price: Price) -> str:
    return f"{price.nodes}\n{price.domain}"


def _show_constraints(limits: tuple[Constraint, ...]) -> None:
    binding = [one for one in limits if one.binds and one.limit > 0]
    sold_out = sum(one.binds and one.limit == 0 for one in limits)
    print_table(
        ("limit", "of", "at", "limit is", "unit"),
        [
            (one.kind, one.about, f"{one.used:,.5g}", f"{one.limit:,.5g}", one.unit)
            for one in binding[:MOST_SHOWN]
        ],
        title="which limits bind",
    )
    if len(binding) > MOST_SHOWN:
        typer.echo(f"and {len(binding) - MOST_SHOWN} more; --json lists all")
    if sold_out:
        typer.echo(f"{sold_out} offers have nothing to be had")


def _show_answers(found: Explanation, kind: str, title: str) -> None:
    some = [one for one in found.answers if one.kind == kind]
    if not some:
        return
    rows: list[tuple[object, ...]] = []
    estimated = any(one.estimate_usd_h is not None for one in some)
    for one in some:
        row: list[object] = [one.about, _figure(one), _gap(one)]
        if estimated:
            row.append("–" if one.estimate_usd_h is None else f"{one.estimate_usd_h:+,.4f}")
        if kind == "template":
            row.append("\n".join(f"{i.count}: {i.nodes} in {i.domain}" for i in one.instead) or "–")
        rows.append(tuple(row))
    columns = ["change", "plan, re-solved", "gap"]
    if estimated:
        columns.append("estimate (linear), USD/h")
    if kind == "template":
        columns.append("instead")
    print_table(columns, rows, title=title)


def _figure(answer: Answer) -> str:
    from coral.core.plan.explain.wording import in_words

    return "estimate only" if answer.figure is None else in_words(answer.figure)


def _gap(answer: Answer) -> str:
    if answer.figure is None or answer.figure.gap is None:
        return "–" if answer.figure is None else "not proven"
    return f"{answer.figure.gap:.1e}" if answer.figure.gap > 1e-9 else "0"


def show_mends(found: tuple[Mend, ...]) -> None:
    typer.echo("")
    if not found:
        typer.echo(
            "no single change was found that would mend it: more machines, fewer requests, looser limits"
        )
        return
    typer.echo(
        "any one of these would mend it (each was solved; try it with `coral plan` and what stands below):"
    )
    for one in found:
        more = one.cost_usd_h - one.price_usd_h
        started = f" and {more:,.4f} for initialization" if more >= 5e-5 else ""
        typer.echo(f"- {one.about}: then {one.price_usd_h:,.4f} USD/h{started}")
        typer.echo("    " + " ".join(f"--what-if '{change}'" for change in one.what_if))
