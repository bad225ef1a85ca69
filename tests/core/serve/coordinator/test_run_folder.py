from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from coral.core.serve.coordinator.run_folder import KEEP_RUNS, RunFolder
from coral.errors import UsageError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_can_reach_its_sockets(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "s")
    assert run.path == tmp_path / "s" / "run" / str(os.getpid())
    assert mode(run.path) == 0o700
    folder = Path(run.address("control").removeprefix("ipc://")).parent
    assert mode(folder) == 0o700
    run.close()


def test_a_long_path_is_not_too_long_for_a_socket(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / ("x" * 120))
    path = Path(run.address("control").removeprefix("ipc://"))
    assert len(os.fsencode(path)) < 100
    assert mode(path.parent) == 0o700
    run.close()
    assert not path.parent.exists()
    assert run.logs.exists(), "logs stay"


def test_only_the_last_runs_are_kept(tmp_path: Path) -> None:
    for number in range(KEEP_RUNS + 3):  # process ids above the kernel's limit: certainly dead
        (tmp_path / "run" / str(2**23 + number)).mkdir(parents=True)
    run = RunFolder(tmp_path)
    assert len(list((tmp_path / "run").iterdir())) == KEEP_RUNS + 1
    assert run.path.exists()
    run.close()


def test_a_place_where_nothing_can_be_written_is_named_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/none")):
        with pytest.raises(UsageError, match=f"state.folder: cannot write in {place}") as raised:
            RunFolder(place)
        assert "state.folder=" in (raised.value.mend or "")
