from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from coral_cloud_static.cloud import StaticCloud, build
from coral_cloud_static.options import StaticOptions
from pydantic import ValidationError

from coral.errors import CloudError
from coral.hookspecs.cloud import RentOrder
from coral.hookspecs.engine import Launch
from coral.testing.cloud import CloudContract
from coral.types.hardware import Domain

ROW = {"type": "g6e.xlarge", "gpu": "L40S", "gpus": 1, "region": "us-east-2", "price": 1.861, "obtainable": 3}


def cloud(**options: object) -> StaticCloud:
    return build(StaticOptions.model_validate({"name": "aws", **options}))


class TestStatic(CloudContract):
    rents = False

    @pytest.fixture
    def cloud(self) -> StaticCloud:
        return build(StaticOptions.model_validate({"offers": [ROW]}))


def test_rows_and_a_file_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text(
        "# a note\ntype,gpu,gpus,region,zone,price,obtainable,market,nic,host_memory\n"
        "g6.xlarge,L4,1,us-east-2,,0.8048,5,,2.5Gbit/s,16GiB\n"
        "g6.12xlarge,L4,4,us-east-2,az1,1.5184,2,spot,,\n"
    )
    options = StaticOptions.model_validate(
        {"name": "aws", "offers": [ROW], "file": "more.csv"}, context={"folder": tmp_path}
    )
    offers = asyncio.run(build(options).offers())
    assert [o.key for o in offers] == [
        "aws/us-east-2:g6e.xlarge:on_demand",
        "aws/us-east-2:g6.xlarge:on_demand",
        "aws/us-east-2/az1:g6.12xlarge:spot",
    ]
    assert offers[1].machine_type.nic_bytes_per_s == pytest.approx(2.5e9 / 8)
    assert offers[1].machine_type.host_memory_bytes == 16 * 2**30
    assert offers[2].domain == Domain(cloud="aws", region="us-east-2", zone="az1")
    assert (offers[2].price_usd_h, offers[2].obtainable) == (1.5184, 2)


def test_every_fault_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("type,gpu,gpus,region,price\na,L4,none,r,1\nb,L4,1,r,-2\nc,L4,1,,1\n")
    with pytest.raises(CloudError) as caught:
        asyncio.run(cloud(file=str(file)).offers())
    text = str(caught.value)
    assert all(part in text for part in ("row 1, gpus", "row 2, price", "row 3, region", str(file)))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match=r"nowhere\.csv"):
        asyncio.run(cloud(file=str(tmp_path / "nowhere.csv")).offers())


def test_contradictions_are_refused() -> None:
    twice = cloud(offers=[ROW, ROW, {**ROW, "region": "elsewhere", "gpus": 2}])
    with pytest.raises(CloudError, match=r"offered twice.*described in two ways"):
        asyncio.run(twice.offers())


def test_nothing_can_be_rented() -> None:
    one = cloud(offers=[ROW])
    (offer,) = asyncio.run(one.offers())
    order = RentOrder(id="x", offer=offer, agent=Launch(argv=("true",)))
    with pytest.raises(CloudError, match="cannot be rented"):
        asyncio.run(one.rent(order))
    asyncio.run(one.release(["unknown"]))
    assert asyncio.run(one.machines()) == []


def test_gpus_of_its_own() -> None:
    described = {"name": "X1", "memory": "48GiB", "memory_bandwidth": "900GB/s", "flops": {"bfloat16": 4e14}}
    (gpu,) = cloud(offers=[ROW], gpus=[described]).gpus()
    assert (gpu.name, gpu.memory_bytes, gpu.flops["bfloat16"]) == ("X1", 48 * 2**30, 4e14)


def test_offers_are_needed() -> None:
    with pytest.raises(ValueError, match="give offers"):
        cloud()


@pytest.mark.parametrize("peak", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_gpus_peak_is_a_positive_number(peak: float) -> None:
    gpu = {"name": "own", "memory": "16GiB", "memory_bandwidth": "300GB/s", "flops": {"bfloat16": peak}}
    with pytest.raises(ValidationError, match="flops"):
        StaticOptions.model_validate({"file": "offers.csv", "gpus": [gpu]})


def test_spot_offers_say_how_often_they_are_lost() -> None:
    spot = {**ROW, "market": "spot", "preemption_per_h": 0.2}
    offers = asyncio.run(cloud(offers=[ROW, spot]).offers())
    assert [(o.market, o.preemption_per_h) for o in offers] == [("on_demand", 0.0), ("spot", 0.2)]


def test_on_demand_machines_are_not_preempted() -> None:
    with pytest.raises(ValidationError, match="market: spot"):
        cloud(offers=[{**ROW, "preemption_per_h": 0.2}])


def test_a_file_as_spreadsheets_write_it(tmp_path: Path) -> None:
    file = tmp_path / "marked.csv"
    file.write_bytes(b"\xef\xbb\xbftype,gpu,gpus,region,price,obtainable\r\na,L4,1,r,1,2\r\n")
    (one,) = asyncio.run(cloud(file=str(file)).offers())
    assert one.key == "aws/r:a:on_demand"


def test_a_file_that_is_no_csv_is_named(tmp_path: Path) -> None:
    file = tmp_path / "wide.csv"
    file.write_text("type,gpu,gpus,region,price\n" + "x" * 200_000 + ",L4,1,r,1\n")
    with pytest.raises(CloudError, match=r"wide\.csv"):
        asyncio.run(cloud(file=str(file)).offers())
