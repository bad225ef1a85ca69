"""What is still served when something is lost: a zone, all spot machines, or any one machine.

Each is a promise of q of the demand, h ∈ [0, 1] of which is kept; h is 1 where demand is hard. Where it
is soft demand is served first, then the promises are kept as far as that leaves room, then comes the
cost.

zone     for each zone z: Σ_{z' ≠ z} of what `serving` says ≥ q h. A domain without a zone is one by itself
         (its region), and since it may be any of those that the region is known to have, it is lost with each
spot     the same over on-demand instances, q = 1 - spot_share
machine  for each kind of machine on offer or held (site, GPU, G GPUs): see `losses`

Where a domain serves a part f of its own and loses nothing, f says what it still does; it is not stated
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.plan.draft import Draft
from coral.core.plan.problem import Problem
from coral.core.plan.serving import Cell, Part, left_of, serve
from coral.types.hardware import Domain
from coral.types.program import Ints

Loss = Literal["zone", "spot", "machine"]


class Promise(Struct, frozen=True, kw_only=True):
    """`share` of a model's demand survives a loss. `column`: h."""

    model: int
    loss: Loss
    share: float
    column: int


class Scenario(Struct, frozen=True, kw_only=True, eq=False):
    """What is left of a promise after one loss: Σ x[columns] ≥ share·h."""

    promise: Promise
    columns: tuple[int, ...]


def promised(problem: Problem, model: int) -> list[tuple[Loss, float]]:
    """What is asked of a model's plan, and of how much of the demand."""
    spec, options = problem.view.models[model], problem.view.options
    asked: list[tuple[Loss, float]] = [
        ("zone", spec.survive_zone),
        ("spot", 1.0 - options.spot_share),
        ("machine", spec.survive_machine),
    ]
    return [(loss, share) for loss, share in asked if share > 0]


def zones(domains: Sequence[Domain]) -> tuple[frozenset[Domain], ...]:
    """What is lost together, at most: a zone with what may lie in it, or a region that names no zones."""
    found = []
    for one in sorted(set(domains)):
        region = [d for d in domains if (d.cloud, d.region) == (one.cloud, one.region)]
        if one.zone:
            found.append(frozenset({one, *(d for d in region if not d.zone)}))
        elif not any(d.zone for d in region):
            found.append(frozenset({one}))
    return tuple(found)


def lost_columns(problem: Problem, loss: Loss) -> list[NDArray[np.bool_]]:
    """(columns,) of what is gone, for each zone or for all of spot."""
    sites = problem.sites
    if loss == "spot":
        gone = [np.array([site.market == "spot" for site in sites], dtype=np.bool_)]
    else:
        gone = [
            np.array([site.domain in zone for site in sites], dtype=np.bool_)
            for zone in zones([site.domain for site in sites])
        ]
    return [some[problem.columns.domain] for some in gone]


def survive(
    draft: Draft, problem: Problem, nu: Ints, promise: Promise, base: Sequence[Cell]
) -> tuple[list[Cell], list[Scenario]]:
    """Rows of a promise against the loss of zones or of spot; its cells, and how they add up.

    `base`: the cells of the model's demand."""
    cells: list[Cell] = []
    scenarios: list[Scenario] = []
    for lost in lost_columns(problem, promise.loss):
        whole = [cell for cell in base if not any(lost[lines].any() for lines in cell.lines)]
        if len(whole) == len(base):
            continue
        hurt = [Part(services=c.services, place=c.place, lines=c.lines) for c in base if c not in whole]
        some = [left for part in hurt if (left := left_of(part, lost)) is not None]
        already = [cell.column for cell in whole]
        found = serve(
            draft,
            problem,
            nu,
            promise.model,
            some,
            promise.column,
            already=already,
            share=promise.share,
            kind=promise.loss,
        )
        cells += found
        columns = (*(cell.column for cell in found), *already)
        if promise.column not in columns:
            scenarios.append(Scenario(promise=promise, columns=columns))
    return cells, scenarios
