"""Options of the `cauchy` planner."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coral.core.plan.planners.permission_options import GreedyOptions


class CauchyOptions(GreedyOptions):
    """`plan: {planner: {use: cauchy, ...}}`."""

    choose: Literal["greedy", "ilp"] = "greedy"
    """`greedy` deploys the most cost-efficient combo again and again; `ilp` the cheapest set of combos."""
    candidates: int | None = Field(default=None, ge=1)
    """Combos of a model in a domain that are considered, the most cost-efficient ones; none: all."""
    most_replicas: int = Field(default=8, ge=1, le=64)
    """Instances of one phase in one combo, at most."""
