from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coral.core.serve.coordinator.run_folder import KEEP_LOGS, RunFolder, deployment_name
from coral.errors import UsageError

HOLDER = """
import sys, time
from pathlib import Path
from coral.core.serve.coordinator.run_folder import RunFolder
run = RunFolder(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_can_reach_its_sockets(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "s")
    assert run.path == tmp_path / "s" / "run"
    assert mode(run.path) == 0o700
    folder = Path(run.address("control").removeprefix("ipc://")).parent
    assert mode(folder) == 0o700
    run.close()


@pytest.mark.parametrize("name", ["s", "x" * 120])
def test_the_next_one_has_the_same_addresses(tmp_path: Path, name: str) -> None:
    run = RunFolder(tmp_path / name)
    before = run.address("control"), run.address("tokens")
    path = Path(before[0].removeprefix("ipc://"))
    assert len(os.fsencode(path)) < 100
    assert mode(path.parent) == 0o700
    run.close()
    assert run.logs.exists(), "logs stay"
    again = RunFolder(tmp_path / name)
    assert (again.address("control"), again.address("tokens")) == before
    again.close()


def test_a_folder_for_sockets_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 120)
    run = RunFolder(state)
    short = Path(run.address("control").removeprefix("ipc://")).parent
    run.close()
    short.mkdir(mode=0o755)
    try:
        with pytest.raises(UsageError, match="somebody else's"):
            RunFolder(state)
    finally:
        short.rmdir()
    RunFolder(state).close()


def test_a_second_coordinator_is_refused_until_the_first_has_ended_however_it_ends(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=f"another coordinator, pid {holder.pid}, runs on {tmp_path}"):
            RunFolder(tmp_path)
        dry = RunFolder(tmp_path, passing=True)
        assert dry.path != tmp_path / "run"
        dry.close()
        assert not dry.path.exists()
        os.kill(holder.pid, signal.SIGKILL)
    finally:
        holder.kill()
        holder.wait(10)
        assert holder.stdout is not None
        holder.stdout.close()
    RunFolder(tmp_path).close()


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    for number in range(KEEP_LOGS + 3):
        (logs / f"{number}.log").touch()
        os.utime(logs / f"{number}.log", (number, number))
    run = RunFolder(tmp_path)
    assert len(list(logs.iterdir())) == KEEP_LOGS
    assert not (logs / "0.log").exists()
    run.close()


def test_a_place_where_nothing_can_be_written_is_named_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/none")):
        with pytest.raises(UsageError, match=f"state.folder: cannot write in {place}") as raised:
            RunFolder(place)
        assert "state.folder=" in (raised.value.mend or "")


def test_a_deployment_keeps_its_name_when_its_folder_moves_or_is_deleted(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    name = deployment_name(one)
    assert len(name) == 12
    assert deployment_name(one) == name
    (one / "deployment").unlink()
    assert deployment_name(one) == name, "deleted, at the same place"
    one.rename(two)
    assert deployment_name(two) == name, "moved"
    one.mkdir()
    (one / "deployment").write_text("")
    assert deployment_name(one) == name
    (tmp_path / "three").mkdir()
    assert deployment_name(tmp_path / "three") != name


def test_sockets_of_processes_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    alive, dead = run.sockets / f"w{os.getpid()}", run.sockets / f"s{2**23}"
    for path in (alive, dead):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    run._unlock()  # as if killed
    again = RunFolder(tmp_path)
    assert alive.exists()
    assert not dead.exists()
    again.close()
    assert not alive.exists(), "it ends last"
