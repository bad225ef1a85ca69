"""The store: what was written is there for the next coordinator; what cannot be used is said."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coral.core.operate.demand import DemandSample
from coral.core.operate.request_sizes import one
from coral.core.operate.slots import Claim
from coral.core.serve.coordinator.specs import InstanceLayout
from coral.core.serve.store import demand, fleet, keys, plans
from coral.core.serve.store.database import Store
from coral.errors import StoreError
from coral.types.hardware import Domain, Machine, MachineType, Node, NodeType, Offer
from coral.types.model import Slo
from coral.types.placement import Placement, Stage, StageNode, Template
from coral.types.plan import Plan
from coral.types.stage import InstanceSpec

TYPE = MachineType(name="duo", gpu="cpu", gpus=2)
HERE = Domain("local", "host")
NODE = NodeType("cpu", 1)
TEMPLATE = Template(
    id="t",
    model="m",
    phase="mixed",
    slo=Slo(prefill_s=1.0, decode_s=0.1),
    placement=Placement(
        stages=(Stage(first_layer=0, end_layer=2, nodes=(StageNode(node_type=NODE, throughput=1.5),)),)
    ),
    throughput=1.5,
)
CLAIM = Claim(stages=((Node(machine_id="duo-1", node_type=NODE, devices=(1,)),),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coral.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def again(store: Store) -> Store:
    """As the next coordinator finds it."""
    store.close()
    return Store(store.path)


def test_machines_orders_and_instances_come_back_as_they_were(store: Store) -> None:
    order = fleet.OrderRecord(
        id="order-1",
        cloud="local",
        made_s=5.0,
        offer=Offer(machine_type=TYPE, domain=HERE, price_usd_h=0.1, obtainable=2),
    )
    machine = fleet.MachineRecord(
        order="order-0",
        cloud="local",
        since_s=4.0,
        machine=Machine(id="duo-1", machine_type=TYPE, domain=HERE, price_usd_h=0.1),
    )
    spec = InstanceSpec(
        instance="m-1",
        generation=1,
        model="m",
        phase="mixed",
        stages=((),),
        expected_output_tokens=4,
        max_model_len=64,
    )
    instance = fleet.InstanceRecord(
        id="m-1",
        since_s=6.0,
        state="ready",
        template=TEMPLATE,
        domain=HERE,
        claim=CLAIM,
        layout=InstanceLayout(spec=spec, seats=(), scheduler_machine="duo-1"),
        fingerprint="f",
        processes=(fleet.ProcessRecord(name="m-1/scheduler", machine="duo-1", pid=7),),
    )
    fleet.put_order(store, order)
    fleet.put_machine(store, machine)
    fleet.put_instance(store, instance)
    store = again(store)
    assert fleet.orders(store) == [order]
    assert fleet.machines(store) == [machine]
    assert fleet.instances(store) == [instance]
    fleet.drop_instance(store, "m-1")
    fleet.drop_machine(store, "duo-1")
    assert (fleet.machines(store), fleet.instances(store)) == ([], [])


def test_a_machine_takes_the_place_of_its_order(store: Store) -> None:
    offer = Offer(machine_type=TYPE, domain=HERE, price_usd_h=0.1, obtainable=2)
    fleet.put_order(store, fleet.OrderRecord(id="o", cloud="local", made_s=1.0, offer=offer))
    machine = Machine(id="duo-1", machine_type=TYPE, domain=HERE, price_usd_h=0.1)
    fleet.put_machine(store, fleet.MachineRecord(order="o", cloud="local", since_s=2.0, machine=machine))
    assert fleet.orders(store) == []


def test_the_history_of_plans_is_bounded_and_newest_first(store: Store) -> None:
    plan = Plan(
        planner="coral",
        machines=(),
        instances=(),
        services=(),
        price_usd_h=0.0,
        initialization_usd_h=0.0,
        certificate=None,
    )
    for number in range(plans.KEEP + 3):
        plans.add_plan(store, plan, reason=f"epoch {number}", now_s=float(number))
    kept = plans.plans(again(store))
    assert len(kept) == plans.KEEP
    assert kept[0].reason == f"epoch {plans.KEEP + 2}"
    assert kept[0].plan == plan
    assert kept[-1].number == 4


def test_keys_and_tokens(store: Store) -> None:
    keys.allow(store, "a", kind="agent", name="box", now_s=1.0)
    keys.add_token(store, keys.JoinToken(public_key="t", name="box", expires_s=10.0), now_s=1.0)
    keys.add_token(store, keys.JoinToken(public_key="old", name="", expires_s=2.0), now_s=1.0)
    store = again(store)
    assert [key.public_key for key in keys.allowed(store)] == ["a"]
    assert [token.public_key for token in keys.tokens(store, now_s=5.0)] == ["t"]
    keys.use_token(store, "t")
    keys.forbid(store, "a")
    assert keys.tokens(store, now_s=0.0) == []
    assert keys.allowed(store) == []


def test_demand_is_kept_for_two_weeks(store: Store) -> None:
    def sample(at_s: float) -> DemandSample:
        return DemandSample(at_s=at_s, span_s=60, requests=3, sizes=(one(30, 9),))

    for at_s in (1.0, demand.KEEP_S, demand.KEEP_S + 2):
        demand.add_sample(store, "m", sample(at_s))
    demand.prune(store, now_s=demand.KEEP_S + 2)
    assert demand.samples(store, "m", since_s=0) == [sample(demand.KEEP_S), sample(demand.KEEP_S + 2)]
    assert demand.samples(store, "other", since_s=0) == []


def test_what_is_written_together_is_written_all_or_not_at_all(store: Store) -> None:
    def half() -> None:
        with store.together():
            keys.allow(store, "a", kind="agent", name="", now_s=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert keys.allowed(store) == []
    with store.together():
        keys.allow(store, "a", kind="agent", name="", now_s=1.0)
    assert len(keys.allowed(again(store))) == 1


def test_only_its_owner_reads_it(store: Store) -> None:
    assert store.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("found", [b"no database at all", b"SQLite format 3\0" + bytes(2000)])
def test_a_damaged_file_is_refused_with_the_way_out(path: Path, found: bytes) -> None:
    path.write_bytes(found)
    with pytest.raises(StoreError, match=r"cannot be used[\s\S]*move it away"):
        Store(path)


def test_a_file_of_a_later_coral_is_refused(store: Store) -> None:
    store.write("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"later Coral \(schema 99"):
        again(store)


def test_a_failed_write_is_said_once_and_does_not_stop(path: Path) -> None:
    said: list[str] = []
    store = Store(path, said.append)
    other = sqlite3.connect(path, isolation_level=None)
    store.write("PRAGMA busy_timeout = 1")
    other.execute("BEGIN EXCLUSIVE")
    machine = Machine(id="duo-1", machine_type=TYPE, domain=HERE, price_usd_h=0.1)
    record = fleet.MachineRecord(order="o", cloud="local", since_s=2.0, machine=machine)
    fleet.put_machine(store, record)
    fleet.put_machine(store, record)
    assert len(said) == 1
    assert "serving goes on" in said[0]
    other.execute("ROLLBACK")
    other.close()
    fleet.put_machine(store, record)
    assert fleet.machines(store) == [record]
    store.close()


def test_an_order_that_cannot_be_written_is_not_made(path: Path) -> None:
    store = Store(path)
    store.write("PRAGMA query_only = ON")
    offer = Offer(machine_type=TYPE, domain=HERE, price_usd_h=0.1, obtainable=2)
    with pytest.raises(StoreError, match="cannot be written"):
        fleet.put_order(store, fleet.OrderRecord(id="o", cloud="local", made_s=1.0, offer=offer))
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path / "coral.db")
