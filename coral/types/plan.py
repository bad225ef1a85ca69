"""Plans: what to hold, what to run, what it costs, and the proof."""

from __future__ import annotations

from msgspec import Struct

from coral.types.hardware import Domain, Market, Node
from coral.types.model import Phase
from coral.types.placement import Template

ROUNDING = 1e-5
"""Share of a demand that may be missing by a solver's tolerance (1e-6 a row) and not for want of machines."""


class PlannedMachines(Struct, frozen=True, kw_only=True):
    """`kept` of the machines held and `new` ones to rent, of one offer."""

    machine_type: str
    domain: Domain
    market: Market
    price_usd_h: float
    kept: int
    new: int
    stays: tuple[str, ...] = ()
    """Ids of kept machines that instances which stay sit on; of the rest any may be kept."""


class PlannedInstances(Struct, frozen=True, kw_only=True):
    """`count` instances of a template in a domain; the placement travels inline."""

    template: Template
    domain: Domain
    count: int
    kept: int = 0
    """How many of `count` are running already."""
    market: Market | None = None
    """Whose machines they must be on; None: any."""
    stays: tuple[str, ...] = ()
    """Ids of the running instances that are kept, where the planner tells one from the other."""


class Service(Struct, frozen=True, kw_only=True):
    """Demand against capacity of one (model, phase), in the phase's unit of throughput.

    `demand` is what the row needs at the target utilization; `served` what the plan provides, at most
    `demand`; `capacity` all that the planned instances could do.
    """

    model: str
    phase: Phase
    demand: float
    served: float
    capacity: float

    @property
    def fraction(self) -> float:
        return 1.0 if self.demand <= 0 else self.served / self.demand

    @property
    def met(self) -> bool:
        """Whether all of the demand is served, but for rounding."""
        return self.fraction >= 1 - ROUNDING


class Certificate(Struct, frozen=True, kw_only=True):
    """`bound <= optimum <= cost`; the gap is relative to the cost. `source` says whose bound it is. The
    optimum is that of the planner's program (see docs/deciding.md on what survives a machine)."""

    cost_usd_h: float
    """The plan's objective: price of machines and, where charged, initialization."""
    bound_usd_h: float
    gap: float
    source: str
    work: int = 0
    seconds: float = 0.0
    columns: int = 0
    """Variables of the program that was solved: templates that were left to choose from, and machines."""
    columns_full: int = 0
    """Templates × domains, and running groups, before any reduction."""


class Plan(Struct, frozen=True, kw_only=True):
    planner: str
    machines: tuple[PlannedMachines, ...]
    instances: tuple[PlannedInstances, ...]
    services: tuple[Service, ...]
    price_usd_h: float
    """What the machines cost per hour once running, without initialization."""
    initialization_usd_h: float
    """Of what is new, spread over its span, and after preemptions to be expected of spot machines."""
    certificate: Certificate | None
    notes: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()
    """What else was asked and does not hold, in words: floors, what survives a loss, caps, the budget."""
    leaves: tuple[str, ...] = ()
    """Ids of running instances that are to go, also where some like them are planned: they are in the way."""

    @property
    def satisfied(self) -> bool:
        return all(service.met for service in self.services) and not self.unkept


class RunningInstance(Struct, frozen=True, kw_only=True):
    """An instance as the planner's view has it.

    `nodes`: the devices it holds, where known; a planner then plans around what they leave free.
    """

    id: str
    template: Template
    domain: Domain
    nodes: tuple[Node, ...] = ()
