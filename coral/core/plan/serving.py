"""Which instances serve which part of a demand: the rows of demand, whole or after a loss.

A model is served in one or more *ways*: by prefill and decode together, by mixed instances, or by both
kinds, each a part of the demand, where the plan chooses. Where phases are coupled, prefill and decode
serve a part per domain. A *cell* is one such part f, in shares of the demand::

    Σ_τ T/d ν  ≥  f     for each service of the cell, over its instances there
    Σ f ≥ q·s           over the model's cells; with only one cell f is q·s itself

The same rows over the instances that are left when a zone or all spot machines are lost say what
survives: there q is the share asked for, and s is 1, or what can be had of it where demand is soft.

Reductions. f is at most q, so that T/d is cut at q, in every row by its own q (d). An instance of enough
throughput for a row satisfies it alone, so no column is needed more than ⌈d/T⌉ times by any of these
rows. A split template keeps its nodes in their domain and market, so that the rows of losses see no
difference (a).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.plan.draft import Draft, RowKind
from coral.core.plan.problem import Problem
from coral.core.plan.services import coupled
from coral.types.program import Floats, Ints

ANYWHERE = -1


class Cell(Struct, frozen=True, kw_only=True, eq=False):
    """A part of a model's demand and what serves it: `lines[i]` are columns of service `services[i]` in
    domain `place` (a number of the problem's `places`, or anywhere), of all of which the least counts.

    `column`: f, in shares of `scale` × the demand, at most `most`.
    """

    model: int
    services: tuple[int, ...]
    place: int
    lines: tuple[Ints, ...]
    column: int
    base: bool
    """Whether it is of the demand itself, and not of what survives a loss."""
    scale: float = 1.0
    most: float = 1.0

    def able(self, problem: Problem, counts: Floats) -> float:
        """f as large as these counts of the problem's columns can make it."""
        rates = [
            float(problem.columns.throughput[lines] @ counts[lines])
            / (problem.needs[service].demand * self.scale)
            for service, lines in zip(self.services, self.lines, strict=True)
        ]
        return min([self.most, *rates])


class Part(Struct, frozen=True, kw_only=True, eq=False):
    """A cell without its variable."""

    services: tuple[int, ...]
    place: int
    lines: tuple[Ints, ...]


def parts(problem: Problem, model: int) -> tuple[Part, ...]:
    """The ways in which a model is served, each per domain where its phases are coupled."""
    columns = problem.columns
    mine = [i for i, need in enumerate(problem.needs) if need.model == model and need.demand > 0]
    apart = tuple(i for i in mine if problem.needs[i].phase != "mixed")
    found: list[Part] = []
    if apart and coupled(problem.view.models[model], problem.view):
        at = problem.places[columns.domain] if len(columns) else columns.domain
        ours = np.isin(columns.service, apart)
        for place in map(int, np.unique(at[ours])) if ours.any() else [ANYWHERE]:
            lines = tuple(
                np.flatnonzero((columns.service == i) & ((at == place) | (place < 0))) for i in apart
            )
            found.append(Part(services=apart, place=place, lines=lines))
    elif apart:
        found.append(_anywhere(problem, apart))
    found.extend(_anywhere(problem, (i,)) for i in mine if problem.needs[i].phase == "mixed")
    return tuple(found)


def _anywhere(problem: Problem, services: tuple[int, ...]) -> Part:
    lines = tuple(np.flatnonzero(problem.columns.service == i) for i in services)
    return Part(services=services, place=ANYWHERE, lines=lines)


def serve(
    draft: Draft,
    problem: Problem,
    nu: Ints,
    model: int,
    some: Sequence[Part],
    whole: int,
    *,
    already: Sequence[int] = (),
    share: float = 1.0,
    kind: RowKind = "demand",
) -> tuple[Cell, ...]:
    """Rows that make `some` parts serve share × `whole` (a column: s) together with the cells `already`
    there; returns the new cells. Where only one part is to serve it, its cell is `whole` itself."""
    if len(some) == 1 and not len(already):
        _cover(draft, problem, nu, some[0], whole, share=share, most=1.0, kind=kind)
        (part,) = some
        return (_cell(model, part, whole, kind, scale=share, most=1.0),)
    found = []
    for part in some:
        column = int(draft.builder.variables(1, upper=share)[0])
        _cover(draft, problem, nu, part, column, share=1.0, most=share, kind=kind)
        found.append(_cell(model, part, column, kind, scale=1.0, most=share))
    total = draft.rows("sharing" if kind == "demand" else kind, 1, lower=0.0, model=model)
    draft.builder.entries(total, [*(cell.column for cell in found), *already], 1.0)
    draft.builder.entries(total, [whole], -share)
    return tuple(found)


def _cell(model: int, part: Part, column: int, kind: RowKind, *, scale: float, most: float) -> Cell:
    return Cell(
        model=model,
        services=part.services,
        place=part.place,
        lines=part.lines,
        column=column,
        base=kind == "demand",
        scale=scale,
        most=most,
    )


def _cover(
    draft: Draft,
    problem: Problem,
    nu: Ints,
    part: Part,
    column: int,
    *,
    share: float,
    most: float,
    kind: RowKind,
) -> None:
    """Σ min(T/(share·d), most) ν ≥ x[column], for each service of a part."""
    for service, lines in zip(part.services, part.lines, strict=True):
        need = problem.needs[service]
        row = draft.rows(kind, 1, lower=0.0, service=service, model=need.model)
        scaled = problem.columns.throughput[lines] / (need.demand * share)
        draft.builder.entries(row, nu[lines], np.minimum(scaled, most) if problem.tighten else scaled)
        draft.builder.entries(row, [column], -1.0)


def left_of(part: Part, lost: NDArray[np.bool_]) -> Part | None:
    """A part without the columns that are `lost`; None where a service of it has none left."""
    lines = tuple(some[~lost[some]] for some in part.lines)
    return Part(services=part.services, place=part.place, lines=lines) if all(map(len, lines)) else None
