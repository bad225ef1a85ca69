"""What a baseline's replicas may be, as options that every baseline states in full."""

from __future__ import annotations

from typing import Literal

from coral.core.plan.planners.permissions import Permissions
from coral.hookspecs.options import Options


class PermissionOptions(Options):
    """A replica uses GPUs of one model; these say what else it may do."""

    multi_node: bool = True
    """Replicas may be pipelines over several nodes; false: a replica is one node."""
    pipelines_in_machine: bool = False
    """Replicas may be pipelines of smaller nodes in one machine; false: only tensor and data parallel."""
    mix_sizes: bool = False
    """Replicas may mix nodes of several sizes of one GPU model; false: all nodes of one node type."""
    slices: bool = False
    """Nodes may be parts of machines where `plan.slices` is on; false: a node is a whole machine."""

    @property
    def permissions(self) -> Permissions:
        return Permissions(
            multi_node=self.multi_node,
            pipelines_in_machine=self.pipelines_in_machine,
            mix_sizes=self.mix_sizes,
            slices=self.slices,
        )


class GreedyOptions(PermissionOptions):
    """How replicas are added where no solver chooses them."""

    trim_last: bool = True
    """The last replica is the cheapest that suffices, surplus is taken back; false: one more of the best."""
    order: Literal["least_served", "in_turn"] = "least_served"
    """Whose turn it is: the least served model by priority; or the first, until nothing more fits it."""
