"""Processes that an agent forks from one that has imported what they need."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coral.core.serve.agent.warmed import Warmed, Wish
from coral.core.serve.net.wire import ProcessExited, ProcessStarted, StartProcess, StopProcess
from coral.testing.agent import PlayedCoordinator, command_line, wait_gone
from coral.testing.processes import alive

FORKED = (sys.executable, "-m", "coral.testing.forked")
PRELOAD = ("coral.core.serve.net.wire",)


def forked(
    one: PlayedCoordinator,
    name: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    memory_bytes: int = 0,
) -> int:
    start = StartProcess(
        process=name,
        argv=(*FORKED, *arguments),
        env=env or {},
        preload=PRELOAD,
        memory_bytes=memory_bytes,
    )
    one.send(start)
    return one.expect(ProcessStarted).pid


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_forked_process_is_the_agents_own_and_shares_what_was_imported(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    first, second = forked(one, "a", "sleep"), forked(one, "b", "sleep")
    assert "forked" in one.log()
    assert (parent(first), parent(second)) == (one.agent.pid, one.agent.pid)
    assert (os.getpgid(first), os.getpgid(second)) == (first, second)
    for name in ("a", "b"):
        one.send(StopProcess(process=name, grace_s=5.0))
    ended = {one.expect(ProcessExited).process: None for _ in range(2)}
    assert set(ended) == {"a", "b"}
    wait_gone([first, second], 5.0)


def test_a_forked_process_reports_its_exit_and_last_words(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    forked(one, "talker", "say", env={"CUDA_VISIBLE_DEVICES": "3", "CORAL_SECRET": "s", "OTHER": "o"})
    exited = one.expect(ProcessExited)
    assert exited.code == 3
    words = exited.tail.splitlines()
    assert words[0] == "argv say, stdin empty, threads 1"
    assert words[1] == "CUDA_VISIBLE_DEVICES=3 CORAL_SECRET=s OTHER=o"
    assert words[2] != "", "a draw that differs from its siblings'"
    forked(one, "again", "say", env={"CUDA_VISIBLE_DEVICES": "4", "CORAL_SECRET": "t", "OTHER": "o"})
    other = one.expect(ProcessExited).tail.splitlines()
    assert other[1] == "CUDA_VISIBLE_DEVICES=4 CORAL_SECRET=t OTHER=o"
    assert other[2] != words[2], "random numbers of siblings are not the same"
    assert one.log().count(", forked") == 2


def test_a_forked_process_over_its_memory_limit_is_ended(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    forked(one, "glutton", "grow", memory_bytes=200 << 20)
    assert "memory" in one.expect(ProcessExited).reason


def test_what_is_forked_ends_with_a_killed_agent(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    pid = forked(one, "a", "sleep")
    os.kill(one.agent.pid, signal.SIGKILL)
    wait_gone([pid], 5.0)


def test_modules_that_cannot_be_imported_or_start_threads_are_run_afresh(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    for name, module in (("a", "no.such.module"), ("b", "coral.testing.forked_threads")):
        one.send(StartProcess(process=name, argv=(*FORKED, "say"), preload=(module,)))
        assert one.expect(ProcessStarted).pid
        assert one.expect(ProcessExited).code == 3
    assert "No module named 'no'" in one.log()
    assert "has started 1 threads" in one.log()
    assert "afresh: the process to fork it from" in (one.folder / "logs" / "a.log").read_text()
    assert ", forked" not in one.log()


def test_a_stop_that_overtakes_the_start_counts(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    one.send(StartProcess(process="a", argv=(*FORKED, "sleep"), preload=PRELOAD))
    one.send(StopProcess(process="a"))
    assert one.expect(ProcessExited).reason == "asked to end"


def test_a_killed_warmed_process_is_replaced_and_its_children_live(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    first = forked(one, "a", "sleep")
    warmed = one.warmed()
    assert command_line(warmed) == ["coral-warmed", *PRELOAD]
    assert command_line(first) == [*FORKED, "sleep"]
    os.kill(warmed, signal.SIGKILL)
    wait_gone([warmed], 5.0)
    second = forked(one, "b", "sleep")
    assert alive(first)
    assert parent(second) == one.agent.pid
    assert one.log().count(", forked") == 2


def test_orphans_of_a_process_do_not_stay_as_zombies(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    forked(one, "a", "orphan")
    exited = one.expect(ProcessExited)
    orphan = int(exited.tail.split()[-1])
    start = time.monotonic()
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() - start < 10.0, "the orphan is still there"
        time.sleep(0.05)


@pytest.mark.parametrize("modules", [("numpy",), ("torch", "numpy")])
def test_libraries_with_threads_of_their_own_compute_after_the_fork(
    make: Callable[[float], PlayedCoordinator], modules: tuple[str, ...]
) -> None:
    """OpenBLAS has threads once it is imported, and ends them at a fork; torch has none until it computes."""
    one = make(60.0)
    env = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    for name in ("a", "b"):
        start = StartProcess(
            process=name, argv=(*FORKED, "compute", *modules), env=env, preload=(*PRELOAD, *modules)
        )
        one.send(start)
        one.expect(ProcessStarted, timeout_s=60.0)
        exited = one.expect(ProcessExited, timeout_s=60.0)
        assert (exited.code, exited.tail) == (0, "computed in 2 threads"), one.log()
    assert one.log().count(", forked") == 2


def test_a_child_whose_birth_nobody_heard_of_runs_nothing(tmp_path: Path) -> None:
    """The warmed process dies after the fork and before its agent has read of it."""
    reading, writing = os.pipe()
    warmed = Warmed(sys.executable, PRELOAD, dict(os.environ), 0.0)
    note = tmp_path / "ran"
    argv = [sys.executable, "-m", "coral.testing.forked", "touch", str(note)]
    warmed.wishes.append(Wish({"argv": argv, "env": {}}, writing, 0.0, lambda *_: None))
    deadline = time.monotonic() + 30
    peek = socket.fromfd(warmed.fileno(), socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peek.settimeout(30.0)
    try:
        assert peek.recv(1000, socket.MSG_PEEK), "it is ready"
        assert warmed.go_on(0.0) == ""
        child = int(peek.recv(1000, socket.MSG_PEEK).decode().rpartition(":")[2].rstrip("}"))
        assert alive(child)
        os.kill(warmed.pid, signal.SIGKILL)
        warmed.end()
        wait_gone([child], deadline - time.monotonic())
    finally:
        peek.close()
        os.close(writing)
        os.close(reading)
    assert not note.exists()


def test_who_waits_for_a_warmed_process_that_dies_gets_another(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    first = forked(one, "a", "sleep")
    warmed = one.warmed()
    os.kill(warmed, signal.SIGSTOP)
    for name in ("b", "c"):
        one.send(StartProcess(process=name, argv=(*FORKED, "sleep"), preload=PRELOAD))
    with pytest.raises(AssertionError, match="no ProcessStarted"):
        one.expect(ProcessStarted, timeout_s=0.5)
    os.kill(warmed, signal.SIGKILL)
    started = {one.expect(ProcessStarted).pid for _ in range(2)}
    assert len(started) == 2
    assert first not in started
    assert one.log().count(", forked") == 3


def test_many_at_once_are_forked_one_by_one(make: Callable[[float], PlayedCoordinator]) -> None:
    """More than the socket to the warmed process would hold at once."""
    one = make(60.0)
    env = {"CORAL_SECRET": "s" * 4000}
    for i in range(120):
        one.send(StartProcess(process=f"p{i}", argv=(*FORKED, "sleep"), env=env, preload=PRELOAD))
    pids = {one.expect(ProcessStarted).pid for _ in range(120)}
    assert len(pids) == 120
    assert one.log().count(", forked") == 120
    assert all(parent(pid) == one.agent.pid for pid in pids)
    one.agent.terminate()
    wait_gone([*pids, one.agent.pid], 20.0)
