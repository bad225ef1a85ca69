"""A program in the making that knows what each of its rows is for."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from coral.hookspecs.planner import ProgramBuilder
from coral.types.program import Ints

RowKind = Literal[
    "hosting",
    "limit",
    "staying",
    "shaped",
    "demand",
    "sharing",
    "zone",
    "machine",
    "spot",
    "cost",
    "gpus",
    "budget",
]
"""hosting: nodes of a size fit on the machines of a site; row i is that of `site.hosting.sizes[i]`.
limit: machines of a lot in all its ways of use. staying: kept nodes on held machines. shaped: the GPUs of
one held machine. demand: what the instances of a service do against what is asked. sharing: the parts of a
demand sum to it. zone, machine, spot: what is left when these are lost. cost, gpus: caps of a model.
budget: all machines."""


class RowGroup(Struct, frozen=True, kw_only=True):
    """Rows `start` to `start + count`. `site`, `service` and `model` index those of the problem, -1 where
    the rows are of none or of several."""

    kind: RowKind
    start: int
    count: int
    site: int = -1
    service: int = -1
    model: int = -1

    @property
    def stop(self) -> int:
        return self.start + self.count


class Draft:
    """The builder, and the groups of its rows in the order they were added."""

    def __init__(self) -> None:
        self.builder = ProgramBuilder()
        self.groups: list[RowGroup] = []

    def rows(
        self,
        kind: RowKind,
        n: int,
        *,
        lower: ArrayLike = -np.inf,
        upper: ArrayLike = np.inf,
        site: int = -1,
        service: int = -1,
        model: int = -1,
    ) -> Ints:
        rows = self.builder.rows(n, lower=lower, upper=upper)
        if n:
            self.groups.append(
                RowGroup(kind=kind, start=int(rows[0]), count=n, site=site, service=service, model=model)
            )
        return rows
