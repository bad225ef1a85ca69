"""Options of the `helix` planner."""

from __future__ import annotations

from pydantic import Field

from coral.hookspecs.options import Options


class HelixOptions(Options):
    """`plan: {planner: {use: helix, ...}}`. A placement may mix GPU models and node sizes and is always a
    pipeline over machines where it has more than one stage."""

    max_stages: int = Field(default=6, ge=1, le=64)
    """Stages of a placement, at most; also limited by the stages that the tables were made for."""
    max_nodes: int = Field(default=64, ge=1, le=1024)
    """Nodes of a placement, at most."""
    slices: bool = False
    """Nodes may be parts of machines where `plan.slices` is on; false: a node is a whole machine."""
    clusters: dict[str, dict[str, int]] = Field(default_factory=dict)
    """The node set by model or model/phase: {node type: nodes}, as in the paper, for the greatest flow.
    Models without one take the cheapest nodes until their flow serves the demand."""
