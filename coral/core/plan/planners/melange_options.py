"""Options of the `melange` planner."""

from __future__ import annotations

from pydantic import Field

from coral.core.plan.planners.permission_options import PermissionOptions
from coral.hookspecs.options import LocalPath


class MelangeOptions(PermissionOptions):
    """`plan: {planner: {use: melange, ...}}`."""

    multi_node: bool = False
    """Replicas may be pipelines over several nodes; false, as in Mélange: a replica is one node."""
    slice_factor: int = Field(default=8, ge=1, le=1000)
    """Slices that each bucket (each size class of the demand) is cut into; a slice goes whole to one type."""
    rates: LocalPath | None = None
    """JSON of measured requests/s of one replica: {model or model/phase: {node type: [rate of each class]}}.
    Types that it does not name are not used. None: rates come from the library's tables."""
