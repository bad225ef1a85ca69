from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pydantic
import pytest
from coral_cloud_local.cloud import LocalCloud
from coral_cloud_local.ledger import Rented
from coral_cloud_local.options import LocalMachineType, LocalOptions
from coral_cloud_local.process import ProcessId

from coral.errors import CloudError, NoCapacity
from coral.hookspecs.cloud import Cloud, RentOrder
from coral.hookspecs.engine import Launch
from coral.testing.cloud import CloudContract
from coral.types.hardware import Machine, Offer

AGENT = Launch(argv=(sys.executable, "-c", "import time; time.sleep(120)"))
IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
STUBBORN = Launch(argv=(sys.executable, "-c", f"{IGNORE}; time.sleep(120)"))


def options(folder: Path, release_timeout: float = 10.0) -> LocalOptions:
    return LocalOptions(
        machines=(
            LocalMachineType(name="small", memory=100 << 20, price=0.1, count=2),
            LocalMachineType(name="twin", memory=200 << 20, devices=2, gpu="cpu-b"),
        ),
        folder=folder,
        release_timeout=release_timeout,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    path = tmp_path / "machines.json"
    entries = msgspec.json.decode(path.read_bytes(), type=list[Rented]) if path.exists() else []
    for entry in entries:
        entry.agent.signal(signal.SIGKILL)


class TestContract(CloudContract):
    @pytest.fixture
    def cloud(self, folder: Path) -> Cloud:
        return LocalCloud(options(folder))


def offer(cloud: LocalCloud, name: str) -> Offer:
    return next(one for one in asyncio.run(_offers(cloud)) if one.machine_type.name == name)


async def _offers(cloud: LocalCloud) -> list[Offer]:
    return list(await cloud.offers())


def rent(cloud: LocalCloud, name: str, order: str, agent: Launch = AGENT) -> Machine:
    return asyncio.run(cloud.rent(RentOrder(id=order, offer=offer(cloud, name), agent=agent)))


def release(cloud: LocalCloud, *machines: str) -> None:
    asyncio.run(cloud.release(machines))


def test_offers_count_what_is_held(folder: Path) -> None:
    cloud = LocalCloud(options(folder))
    assert offer(cloud, "small").obtainable == 2
    machine = rent(cloud, "small", "o-1")
    assert offer(cloud, "small").obtainable == 1
    release(cloud, machine.id)
    assert offer(cloud, "small").obtainable == 2


def test_devices_are_gpus_of_kind_cpu(folder: Path) -> None:
    gpus = {gpu.name: gpu for gpu in LocalCloud(options(folder)).gpus()}
    assert set(gpus) == {"local-small", "cpu-b"}
    assert gpus["cpu-b"].memory_bytes == 200 << 20
    assert gpus["cpu-b"].kind == "cpu"
    twin = offer(LocalCloud(options(folder)), "twin").machine_type
    assert (twin.gpu, twin.gpus) == ("cpu-b", 2)


def test_an_order_rents_once(folder: Path) -> None:
    cloud = LocalCloud(options(folder))
    first = rent(cloud, "small", "o-1")
    assert rent(cloud, "small", "o-1") == first
    assert [machine.id for machine in asyncio.run(_machines(cloud))] == [first.id]
    release(cloud, first.id)


async def _machines(cloud: LocalCloud) -> list[Machine]:
    return list(await cloud.machines())


def test_no_more_than_there_are(folder: Path) -> None:
    cloud = LocalCloud(options(folder))
    machine = rent(cloud, "twin", "o-1")
    with pytest.raises(NoCapacity, match="twin"):
        rent(cloud, "twin", "o-2")
    release(cloud, machine.id)


def test_an_agent_that_cannot_be_noted_does_not_run(folder: Path) -> None:
    """Its machine would never be found again."""
    cloud = LocalCloud(options(folder))
    wanted = offer(cloud, "small")
    (folder / "machines.new").mkdir()
    agent = Launch(argv=(*AGENT.argv, f"mark-{folder}"))
    with pytest.raises(CloudError, match="cannot write"):
        asyncio.run(cloud.rent(RentOrder(id="o", offer=wanted, agent=agent)))
    deadline = time.monotonic() + 10
    while marked := running(f"mark-{folder}"):
        assert time.monotonic() < deadline, f"still there: {marked}"
        time.sleep(0.05)
    (folder / "machines.new").rmdir()
    assert offer(cloud, "small").obtainable == 2


def running(mark: str) -> list[int]:
    """Processes with this word on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if mark.encode() in words:
            found.append(int(process.name))
    return found


def test_an_agent_that_nothing_ends_is_named_and_nobody_waits_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = LocalCloud(options(folder, release_timeout=0.2))
    machine = rent(cloud, "small", "o-1")
    with monkeypatch.context() as held:
        held.setattr(ProcessId, "signal", lambda *_: None)
        with pytest.raises(CloudError, match=f"{machine.id} .pid"):
            release(cloud, machine.id)
    release(cloud, machine.id)


def test_an_unknown_type_is_named_with_those_there_are(folder: Path) -> None:
    cloud = LocalCloud(options(folder))
    strange = msgspec.structs.replace(
        offer(cloud, "small"),
        machine_type=msgspec.structs.replace(offer(cloud, "small").machine_type, name="huge"),
    )
    with pytest.raises(CloudError, match=r"huge.*\n.*small, twin"):
        asyncio.run(cloud.rent(RentOrder(id="o", offer=strange, agent=AGENT)))


def test_what_a_dead_deployment_left_is_found_and_released(folder: Path) -> None:
    """Another process rents and is killed; its machine is ours to find. While it lives, it is not."""
    script = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from coral_cloud_local.cloud import LocalCloud\n"
        "from coral_cloud_local.options import LocalMachineType, LocalOptions\n"
        "from coral.hookspecs.cloud import RentOrder\n"
        "from coral.hookspecs.engine import Launch\n"
        "types = (LocalMachineType(name='small', memory=1 << 20, count=2),)\n"
        "cloud = LocalCloud(LocalOptions(machines=types, folder=Path(sys.argv[1])))\n"
        "offer = asyncio.run(cloud.offers())[0]\n"
        "agent = Launch(argv=(sys.executable, '-c', 'import time; time.sleep(120)'))\n"
        "print(asyncio.run(cloud.rent(RentOrder(id='o', offer=offer, agent=agent))).id, flush=True)\n"
        "time.sleep(120)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    id = other.stdout.readline().strip()
    cloud = LocalCloud(options(folder))
    try:
        assert asyncio.run(_machines(cloud)) == []
        assert offer(cloud, "small").obtainable == 1
        release(cloud, id)
        assert offer(cloud, "small").obtainable == 1, "another's machine is not ours to release"
    finally:
        other.kill()
        other.wait(10)
        other.stdout.close()
    assert [machine.id for machine in asyncio.run(_machines(cloud))] == [id]
    release(cloud, id)
    assert asyncio.run(_machines(cloud)) == []
    assert offer(cloud, "small").obtainable == 2


def test_an_agent_that_ignores_the_request_is_killed(folder: Path) -> None:
    cloud = LocalCloud(options(folder, release_timeout=0.5))
    machine = rent(cloud, "small", "o-1", STUBBORN)
    log = folder / "logs" / f"{machine.id}.log"
    deadline = time.monotonic() + 20
    while "up" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    release(cloud, machine.id)
    assert asyncio.run(_machines(cloud)) == []


def test_a_machine_whose_agent_died_is_no_longer_held(folder: Path) -> None:
    cloud = LocalCloud(options(folder))
    rent(cloud, "small", "o-1", Launch(argv=(sys.executable, "-c", "")))
    deadline = time.monotonic() + 20
    while asyncio.run(_machines(cloud)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert offer(cloud, "small").obtainable == 2


def test_a_recycled_pid_is_never_signalled() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        real = ProcessId.of(process.pid)
        stale = ProcessId(process.pid, real.started - 1)
        assert real.alive()
        assert not stale.alive()
        stale.signal(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    finally:
        process.kill()
        process.wait(10)
    assert not real.alive()


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "machines.json").write_text("{")
    with pytest.raises(CloudError, match=r"machines\.json is damaged"):
        asyncio.run(_machines(LocalCloud(options(tmp_path))))


def test_devices_of_one_name_must_be_alike() -> None:
    a = LocalMachineType(name="a", memory=1 << 20, gpu="x")
    b = LocalMachineType(name="b", memory=2 << 20, gpu="x")
    with pytest.raises(pydantic.ValidationError, match="unlike memory"):
        LocalOptions(machines=(a, b))
    with pytest.raises(pydantic.ValidationError, match="twice"):
        LocalOptions(machines=(a, a))


def test_without_machine_types_it_is_the_whole_machine(tmp_path: Path) -> None:
    [gpu] = LocalCloud(LocalOptions(folder=tmp_path)).gpus()
    assert gpu.threads == len(os.sched_getaffinity(0))


def test_a_disk_that_takes_nothing_is_named_and_stops_no_release(folder: Path) -> None:
    """A folder stands in the place of the file that is written."""
    cloud = LocalCloud(options(folder))
    machine = rent(cloud, "small", "a")
    (folder / "machines.new").mkdir()
    with pytest.raises(CloudError, match="cannot write in"):
        rent(cloud, "small", "b")
    assert [one.id for one in asyncio.run(_machines(cloud))] == [machine.id]
    assert offer(cloud, "small").obtainable == 1, "what could not be written down was not rented"
    release(cloud, machine.id)
    assert asyncio.run(_machines(cloud)) == []
    assert offer(cloud, "small").obtainable == 2
