"""How much memory there is to be had on this machine, or in this container."""

from __future__ import annotations

from pathlib import Path

GROUP = Path("/sys/fs/cgroup")


def available_bytes(root: Path = Path("/proc"), group: Path = GROUP) -> int | None:
    """What the kernel calls available, less where the container's own limit leaves less; None where neither
    says."""
    found = [value for value in (_machine(root), _container(group)) if value is not None]
    return max(0, min(found)) if found else None


def data_bytes(pid: int, root: Path = Path("/proc")) -> int:
    """What a process has allocated, as RLIMIT_DATA counts it; 0 where it is gone."""
    try:
        lines = (root / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


def _machine(root: Path) -> int | None:
    try:
        lines = (root / "meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container(group: Path) -> int | None:
    """Control groups, version 2 and 1; pages of files do not count, the kernel drops them at need."""
    for most, used in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = most.read_text().strip()
            if limit == "max":
                return None
            return int(limit) - int(used.read_text()) + _file_bytes(most.parent / "memory.stat")
        except (OSError, ValueError):
            continue
    return None


def _file_bytes(stat: Path) -> int:
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("file", "total_cache"):
            return int(value)
    return 0
