"""What is to be done to machines and instances."""

from __future__ import annotations

from msgspec import Struct

from coral.core.operate.holdings import OfferKey
from coral.core.operate.slots import Claim
from coral.types.hardware import Domain
from coral.types.placement import Template


class Rent(Struct, frozen=True, kw_only=True, tag=True):
    offer: OfferKey


class StartInstance(Struct, frozen=True, kw_only=True, tag=True):
    template: Template
    domain: Domain
    claim: Claim


class DrainInstance(Struct, frozen=True, kw_only=True, tag=True):
    instance: str


class EndMachine(Struct, frozen=True, kw_only=True, tag=True):
    machine: str


Action = Rent | StartInstance | DrainInstance | EndMachine


class Schedule(Struct, frozen=True, kw_only=True):
    """`actions`: what can be done now, in order. `notes`: what is held up and why, for people; the same words
    as long as the same is so."""

    actions: tuple[Action, ...]
    notes: tuple[str, ...] = ()
