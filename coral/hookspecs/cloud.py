"""Cloud providers: what can be rented, what is rented, rent and release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from coral.hookspecs import hookspec
from coral.hookspecs.component import Component
from coral.hookspecs.engine import Launch
from coral.types.hardware import Gpu, Machine, Offer


class RentOrder(Struct, frozen=True, kw_only=True):
    """Rent one machine. `id` makes it idempotent: the same id never rents twice.

    `agent` is the agent's command with its arguments complete except for `--machine`, which the cloud
    appends with the machine's id; a cloud runs it on the machine once it is up.
    """

    id: str
    offer: Offer
    agent: Launch
    tags: dict[str, str] = {}
    joined: tuple[str, ...] = ()
    """Machines whose agents have dialled in and wait; a cloud of machines that are there anyway hands out
    one of these first."""


class Notice(Struct, frozen=True, kw_only=True):
    machine_id: str
    kind: Literal["preemption", "maintenance", "lost"]
    seconds_left: float


class Cloud(Protocol):
    """Every method may be called again at any time (idempotent).

    Errors: NoCapacity, QuotaExceeded, CloudAuthError, and CloudError for anything else.
    """

    async def offers(self) -> Sequence[Offer]:
        """What can be rented now; `obtainable` counts machines in addition to those held."""
        ...

    async def machines(self) -> Sequence[Machine]:
        """What this deployment holds now, found again after a restart.

        Where several deployments share an account, those of others may be among them as long as each names
        its own (`Machine.deployment`, the order's tag `coral`): they are left alone.
        """
        ...

    async def rent(self, order: RentOrder) -> Machine:
        """Returns once the machine has an id; it may still boot. Whatever it raises, nothing is rented."""
        ...

    async def release(self, machines: Sequence[str]) -> None:
        """Give machines back by id; unknown ids are ignored."""
        ...

    async def notices(self) -> Sequence[Notice]:
        """Announced ends of machines that this deployment holds; those already told may come again."""
        ...

    def gpus(self) -> Sequence[Gpu]:
        """GPUs that only this cloud knows (the `local` cloud's CPU devices); else empty."""
        ...


class CloudHooks:
    @hookspec
    def coral_clouds(self) -> list[Component]:  # type: ignore[empty-body]
        """Clouds this plugin offers. `build(options)` returns a `Cloud`; it must not connect yet."""
