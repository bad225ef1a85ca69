"""Machines, orders and instances of this deployment.

An order is written before its cloud is asked: a coordinator that dies in between finds it again, and asks
the cloud once more under the same id, which never rents twice.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.core.serve.store.database import Store
from coral.types.hardware import Domain, Machine, Offer
from coral.types.placement import Template


class OrderRecord(Struct, frozen=True, kw_only=True):
    """A machine that was asked for; gone from here once its cloud has answered."""

    id: str
    cloud: str
    made_s: float
    offer: Offer


class MachineRecord(Struct, frozen=True, kw_only=True):
    """`cloud`: its name in this deployment. `joined`: its agent has been here."""

    order: str
    cloud: str
    since_s: float
    machine: Machine
    joined: bool = False


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """A scheduler or worker; `node` is empty for the scheduler."""

    name: str
    machine: str
    node: str = ""
    pid: int = 0


class InstanceRecord(Struct, frozen=True, kw_only=True):
    """An instance whose processes were asked for and have not all ended. `state`: of its life.

    `fingerprint` tells whether the model is still configured as when it was started.
    """

    id: str
    since_s: float
    state: str
    template: Template
    domain: Domain
    claim: Claim
    layout: InstanceLayout
    fingerprint: str
    processes: tuple[ProcessRecord, ...] = ()


def put_order(store: Store, record: OrderRecord) -> None:
    """Raises StoreError: what is not written down must not be asked for."""
    store.write(
        "INSERT OR REPLACE INTO orders (id, cloud, made_s, value) VALUES (?, ?, ?, ?)",
        (record.id, record.cloud, record.made_s, _json(record)),
        lasting=True,
    )


def drop_order(store: Store, id: str) -> None:
    store.note("DELETE FROM orders WHERE id = ?", (id,))


def orders(store: Store) -> list[OrderRecord]:
    """Those that can be read; of others the store says so. Raises StoreError."""
    rows = store.read("SELECT value FROM orders ORDER BY made_s")
    return store.decoded(rows, OrderRecord)


def put_machine(store: Store, record: MachineRecord) -> None:
    """Write it, and forget its order."""
    store.note(
        "INSERT OR REPLACE INTO machines (id, cloud, order_id, since_s, value) VALUES (?, ?, ?, ?, ?)",
        (record.machine.id, record.cloud, record.order, record.since_s, _json(record)),
    )
    drop_order(store, record.order)


def drop_machine(store: Store, id: str) -> None:
    store.note("DELETE FROM machines WHERE id = ?", (id,))


def machines(store: Store) -> list[MachineRecord]:
    """Those that can be read; of others the store says so. Raises StoreError."""
    rows = store.read("SELECT value FROM machines ORDER BY since_s")
    return store.decoded(rows, MachineRecord)


def put_instance(store: Store, record: InstanceRecord) -> None:
    store.note(
        "INSERT OR REPLACE INTO instances (id, since_s, value) VALUES (?, ?, ?)",
        (record.id, record.since_s, _json(record)),
    )


def drop_instance(store: Store, id: str) -> None:
    store.note("DELETE FROM instances WHERE id = ?", (id,))


def instances(store: Store) -> list[InstanceRecord]:
    """Those that can be read; of others the store says so. Raises StoreError."""
    rows = store.read("SELECT value FROM instances ORDER BY since_s")
    return store.decoded(rows, InstanceRecord)


def next_number(store: Store, model: str) -> int:
    """The number of the model's next instance: none is given twice, as long as the store can be written."""
    name = f"instances of {model}"
    rows = store.read("SELECT value FROM deployment WHERE name = ?", (name,))
    number = int(str(rows[0][0])) + 1 if rows else 1
    store.note("INSERT OR REPLACE INTO deployment (name, value) VALUES (?, ?)", (name, str(number)))
    return number


def _json(record: Struct) -> str:
    return msgspec.json.encode(record).decode()
