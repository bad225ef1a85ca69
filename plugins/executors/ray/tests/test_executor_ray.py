"""The Ray executor on a real cluster of this machine: contract, a library like any other, nothing left."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from pathlib import Path

import psutil
import pytest

from coral.testing.executor import ExecutorContract
from coral.testing.processes import alive

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed", allow_module_level=True)

from coral_executor_ray.executor import RayExecutor, build
from coral_executor_ray.options import RayOptions
from pydantic import ValidationError

SOON_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[psutil.Process]:
    """Keeps the cluster up between tests, as any executor of the process does while it is open."""
    others = psutil.Process().children(recursive=True)  # of other tests in this process
    keeper = build(RayOptions(num_cpus=2))
    assert keeper.submit(os.getpid).result(SOON_S) != os.getpid()
    started = [one for one in psutil.Process().children(recursive=True) if one not in others]
    yield psutil.Process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray ends its processes and does not wait for them
        keeper.shutdown()
        gc.collect()
    assert gone([one.pid for one in started])


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + SOON_S
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.usefixtures("cluster")
class TestRay(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return build(RayOptions(num_cpus=2))


def test_all_listen_on_loopback_and_ctrl_c_stays_ours(cluster: psutil.Process) -> None:
    ours = [cluster, *cluster.children(recursive=True)]
    names = {one.name() for one in ours}
    assert {"gcs_server", "raylet"} <= names
    addresses = {
        listening.laddr.ip
        for one in ours
        for listening in one.net_connections("tcp")
        if listening.status == psutil.CONN_LISTEN
    }
    assert addresses
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_worker_that_dies_breaks_its_call_alone(cluster: psutil.Process) -> None:
    with build(RayOptions()) as pool:
        dying = pool.submit(os._exit, 3)
        with pytest.raises(BrokenExecutor):
            dying.result(SOON_S)
        assert pool.submit(os.getpid).result(SOON_S) != os.getpid()


def test_a_block_that_ends_by_an_error_calls_off_what_runs(cluster: psutil.Process) -> None:
    started = time.monotonic()

    def interrupted(pool: RayExecutor) -> None:
        with pool:
            pool.submit(time.sleep, 60.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(build(RayOptions()))
    assert time.monotonic() - started < SOON_S


def test_a_library_is_the_same_byte_for_byte(
    cluster: psutil.Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coral.core.generate import build as building
    from coral.core.generate.executors.options import ProcessesOptions
    from coral.core.generate.executors.processes import build as processes
    from tests.core.generate import library_case as case

    monkeypatch.setattr(building, "WORTH_SHARING", 0)
    models = (case.model("a", phases=("prefill", "decode")), case.model("b", decode_s=0.3))
    with processes(ProcessesOptions(workers=2)) as pool:
        case.build(tmp_path / "processes", *models, executor=pool)
    with build(RayOptions()) as pool:
        case.build(tmp_path / "ray", *models, executor=pool)
    files = {path.name: path.read_bytes() for path in (tmp_path / "processes").iterdir()}
    assert len(files) == 1 + 3 * 3
    assert {path.name: path.read_bytes() for path in (tmp_path / "ray").iterdir()} == files


PARENT = """
import os, time
from coral_executor_ray import cluster
from coral_executor_ray.executor import build
from coral_executor_ray.options import RayOptions
import psutil
if __name__ == "__main__":
    pool = build(RayOptions(num_cpus=1))
    pool.submit(os.getpid).result(30)
    works = [p.pid for p in psutil.Process().children(recursive=True) if "Agent" not in p.name()]
    print(*works, cluster._folder, flush=True)
    pool.submit(time.sleep, 60).result()
"""


def test_nothing_that_works_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Ray's two agents, which only watch, end by themselves a minute later."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        *words, folder = parent.stdout.readline().split()
        started = [int(pid) for pid in words]
        assert len(started) > 2
    finally:
        parent.kill()
        parent.communicate()
    assert gone(started)
    shutil.rmtree(folder, ignore_errors=True)


def test_an_executor_without_work_starts_nothing() -> None:
    pool = build(RayOptions(address="127.0.0.1:1"))  # nobody is there, and nobody asks
    pool.shutdown()


def test_a_cluster_has_its_own_cores() -> None:
    with pytest.raises(ValidationError, match="num_cpus is for a cluster that is started here"):
        RayOptions(address="10.0.0.4:6379", num_cpus=4)
