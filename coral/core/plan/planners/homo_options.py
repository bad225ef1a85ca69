"""Options of the `homo` planner."""

from __future__ import annotations

from typing import Literal

from coral.core.plan.planners.permission_options import GreedyOptions


class HomoOptions(GreedyOptions):
    """`plan: {planner: {use: homo, ...}}`."""

    choose: Literal["greedy", "ilp"] = "greedy"
    """`greedy`: the most cost-efficient replica again and again; `ilp`: the best plan of such replicas."""
    phases: Literal["apart", "together"] = "apart"
    """`together`: a replica is prefill and decode, both on one node type (greedy only)."""
