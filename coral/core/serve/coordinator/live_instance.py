"""An instance as the coordinator follows it."""

from __future__ import annotations

from msgspec import Struct

from coral.core.operate.lifecycle import InstanceState
from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.control import Peer
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.core.serve.net.wire import InstanceReady, InstanceStats
from coral.types.hardware import Domain
from coral.types.placement import Template


class LiveProcess(Struct, kw_only=True):
    """A scheduler or worker. `pid` is 0 until it is known; `ended` once it has exited."""

    name: str
    machine: str
    node: str = ""
    pid: int = 0
    ended: bool = False
    code: int | None = None


class LiveInstance:
    """Times are of the coordinator's clock."""

    def __init__(self, layout: InstanceLayout, template: Template, domain: Domain, claim: Claim) -> None:
        self.layout = layout
        self.template = template
        self.domain = domain
        self.claim = claim
        self.state = InstanceState.PLACED
        self.since = 0.0
        self.heard = 0.0
        self.peer: Peer | None = None
        self.address = ""
        self.processes: dict[str, LiveProcess] = {}
        self.ready: InstanceReady | None = None
        self.stats: InstanceStats | None = None
        self.progress = ""
        self.reason = ""
        self.drained = False
        """Its scheduler has said so; last tokens, which come another way, may still be under way."""
        self.fingerprint = ""
        """Of the model's config when it was started."""
        self.adopted = False
        """An earlier coordinator has started it."""
        self.outdated = ""
        """Why it is to make way for another like it; empty where it is not."""

    @property
    def id(self) -> str:
        return self.layout.spec.instance

    @property
    def model(self) -> str:
        return self.layout.spec.model

    @property
    def ended(self) -> bool:
        return self.state in (InstanceState.GONE, InstanceState.FAILED)

    @property
    def holding(self) -> bool:
        """Whether its devices are still taken."""
        return not self.ended or any(not process.ended for process in self.processes.values())

    @property
    def complete(self) -> bool:
        """All its processes have been asked for."""
        return len(self.processes) == 1 + len(self.layout.seats)
