from __future__ import annotations

import os
from pathlib import Path

from coral.core.solve.memory import available_bytes, data_bytes

MIB = 1 << 20


def machine(folder: Path, kib: int) -> Path:
    root = folder / "proc"
    root.mkdir()
    (root / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemFree: 12 kB\nMemAvailable: {kib} kB\n")
    return root


def container(folder: Path, most: str, used: int, files: int) -> Path:
    group = folder / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\nfile {files}\n")
    return group


def test_the_machine_says(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path, 2048), tmp_path / "none") == 2 * MIB


def test_a_container_may_have_less(tmp_path: Path) -> None:
    root = machine(tmp_path, 1 << 20)
    assert available_bytes(root, container(tmp_path, str(100 * MIB), 60 * MIB, 20 * MIB)) == 60 * MIB


def test_a_container_without_a_limit_and_one_that_is_full(tmp_path: Path) -> None:
    root = machine(tmp_path, 2048)
    assert available_bytes(root, container(tmp_path, "max", 1, 0)) == 2 * MIB
    (tmp_path / "full").mkdir()
    assert available_bytes(root, container(tmp_path / "full", str(MIB), 3 * MIB, 0)) == 0


def test_the_older_control_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, 1 << 20)
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(50 * MIB))
    (group / "memory.usage_in_bytes").write_text(str(30 * MIB))
    (group / "memory.stat").write_text(f"cache 7\ntotal_cache {5 * MIB}\n")
    assert available_bytes(root, tmp_path) == 25 * MIB


def test_nobody_says(tmp_path: Path) -> None:
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_what_a_process_holds() -> None:
    assert data_bytes(os.getpid()) > MIB
    assert data_bytes(2**22 + 1) == 0
