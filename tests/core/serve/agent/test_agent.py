"""A real agent process, driven by a socket that plays the coordinator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import zmq

from coral.core.serve.agent import command
from coral.core.serve.agent.log import BoundedLog
from coral.core.serve.net.wire import (
    AgentHello,
    AnyMessage,
    Heartbeat,
    Message,
    ProcessExited,
    ProcessStarted,
    Shutdown,
    StartProcess,
    StopProcess,
    decode,
    encode,
)
from coral.testing.processes import alive

M = TypeVar("M")
SLEEPER = (sys.executable, "-c", "import time; time.sleep(120)")


class Coordinator:
    def __init__(self, folder: Path, grace_s: float) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.bind(f"ipc://{folder}/control")
        argv = command(f"ipc://{folder}/control", grace_s=grace_s, logs=folder / "logs")
        with (folder / "agent.log").open("w") as log:
            self.agent = subprocess.Popen([*argv, "--machine", "m-1"], stderr=log, start_new_session=True)
        self.folder = folder

    def send(self, message: Message) -> None:
        self.socket.send_multipart([b"agent:m-1", encode(message)])

    def expect(self, kind: type[M], timeout_s: float = 20.0) -> M:
        """The next message of that kind; heartbeats keep going meanwhile."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.socket.poll(200):
                message: AnyMessage = decode(self.socket.recv_multipart()[1])
                if isinstance(message, kind):
                    return message
            if kind is not AgentHello:
                self.send(Heartbeat(at_s=time.time()))
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s; {self.log()}")

    def start(self, name: str, argv: tuple[str, ...], memory_bytes: int = 0) -> int:
        self.send(StartProcess(process=name, argv=argv, memory_bytes=memory_bytes))
        return self.expect(ProcessStarted).pid

    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()
        if self.agent.poll() is None:
            self.agent.kill()
        self.agent.wait(10)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[float], Coordinator]]:
    made: list[Coordinator] = []

    def build(grace_s: float) -> Coordinator:
        made.append(Coordinator(tmp_path, grace_s))
        assert made[-1].expect(AgentHello).machine == "m-1"
        return made[-1]

    yield build
    for one in made:
        one.close()


def wait_gone(pids: list[int], within_s: float) -> float:
    start = time.monotonic()
    while any(alive(pid) for pid in pids):
        assert time.monotonic() - start < within_s, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.05)
    return time.monotonic() - start


def test_an_exit_is_reported_with_code_and_last_words(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    one.start(
        "talker", (sys.executable, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(3)")
    )
    exited = one.expect(ProcessExited)
    assert (exited.process, exited.code, exited.tail, exited.reason) == ("talker", 3, "last words", "")


def test_a_program_that_is_not_there_is_an_exit_with_a_reason(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    one.send(StartProcess(process="ghost", argv=("/no/such/program",)))
    exited = one.expect(ProcessExited)
    assert exited.code == 127
    assert "/no/such/program" in exited.reason


def test_stop_kills_what_ignores_the_request_and_its_children(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(120)\n"
    )
    note = one.folder / "grandchild"
    pid = one.start("stubborn", (sys.executable, "-c", stubborn, str(note)))
    deadline = time.monotonic() + 20
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    grandchild = int(note.read_text())
    one.send(StopProcess(process="stubborn", grace_s=0.5))
    exited = one.expect(ProcessExited)
    assert exited.code == -signal.SIGKILL
    wait_gone([pid, grandchild], 5.0)


def test_a_process_that_eats_too_much_memory_is_ended_with_the_reason(
    make: Callable[[float], Coordinator],
) -> None:
    one = make(30.0)
    eater = (sys.executable, "-c", "b = b'x' * (200 << 20); import time; time.sleep(120)")
    one.start("eater", eater, memory_bytes=100 << 20)
    exited = one.expect(ProcessExited)
    assert exited.code == -signal.SIGKILL
    assert "its limit is 100 MiB" in exited.reason


def test_a_process_within_its_memory_lives(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    pid = one.start("modest", SLEEPER, memory_bytes=200 << 20)
    with pytest.raises(AssertionError, match="no ProcessExited"):
        one.expect(ProcessExited, timeout_s=2.0)
    assert alive(pid)


def test_silence_longer_than_the_grace_time_ends_everything(make: Callable[[float], Coordinator]) -> None:
    one = make(2.0)
    pid = one.start("sleeper", SLEEPER)
    assert wait_gone([pid, one.agent.pid], 10.0) >= 1.0
    assert one.agent.wait(5) == 0
    assert "silent for 2 s" in one.log()


def test_shutdown_and_sigterm_end_everything(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    pid = one.start("sleeper", SLEEPER)
    one.send(Shutdown(grace_s=1.0, reason="released"))
    wait_gone([pid, one.agent.pid], 8.0)
    two = make(30.0)
    pid = two.start("sleeper", SLEEPER)
    two.agent.terminate()
    wait_gone([pid, two.agent.pid], 8.0)


def test_kill_9_of_the_agent_takes_its_processes_along(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    pid = one.start("sleeper", SLEEPER)
    os.kill(one.agent.pid, signal.SIGKILL)
    one.agent.wait(5)
    wait_gone([pid], 5.0)


def test_output_is_bounded(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    loud = "import sys\nfor i in range(60000): sys.stderr.write(f'{i:060d}\\n')"
    one.start("loud", (sys.executable, "-c", loud))
    exited = one.expect(ProcessExited)
    assert exited.tail.endswith("59999")
    written = sum(path.stat().st_size for path in (one.folder / "logs").glob("loud*"))
    assert 0 < written <= 2 << 20


def test_a_log_that_cannot_be_written_costs_its_bytes_alone(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "one.log"
    log = BoundedLog(path)
    log.write(b"first\n")
    log.close()
    path.rename(path.with_suffix(".kept"))
    path.symlink_to("/dev/full")
    log.write(b"second\n")
    log.write(b"third\n")
    assert log.lost == len(b"second\nthird\n")
    assert log.tail() == "first\nsecond\nthird"
    path.unlink()
    log.write(b"fourth\n")
    log.close()
    assert path.read_text() == "[13 bytes are lost: No space left on device]\nfourth\n"
    BoundedLog(Path("/proc/none/x")).write(b"nowhere")  # not even its folder


FORKED = (sys.executable, "-m", "coral.testing.forked")
PRELOAD = ("coral.core.serve.net.wire",)


def forked(
    one: Coordinator, name: str, *arguments: str, env: dict[str, str] | None = None, memory_bytes: int = 0
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
    make: Callable[[float], Coordinator],
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


def test_a_forked_process_reports_its_exit_and_last_words(make: Callable[[float], Coordinator]) -> None:
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


def test_a_forked_process_over_its_memory_limit_is_ended(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    forked(one, "glutton", "grow", memory_bytes=200 << 20)
    assert "memory" in one.expect(ProcessExited).reason


def test_what_is_forked_ends_with_a_killed_agent(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    pid = forked(one, "a", "sleep")
    os.kill(one.agent.pid, signal.SIGKILL)
    wait_gone([pid], 5.0)


def test_modules_that_cannot_be_imported_or_start_threads_are_run_afresh(
    make: Callable[[float], Coordinator],
) -> None:
    one = make(30.0)
    for name, module in (("a", "no.such.module"), ("b", "coral.testing.forked_threads")):
        one.send(StartProcess(process=name, argv=(*FORKED, "say"), preload=(module,)))
        assert one.expect(ProcessStarted).pid
        assert one.expect(ProcessExited).code == 3
    assert "No module named 'no'" in one.log()
    assert "has started 1 threads" in one.log()
    assert ", forked" not in one.log()


def test_a_stop_that_overtakes_the_start_counts(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    one.send(StartProcess(process="a", argv=(*FORKED, "sleep"), preload=PRELOAD))
    one.send(StopProcess(process="a"))
    assert one.expect(ProcessExited).reason == "asked to end"


def test_a_killed_warmed_process_is_replaced_and_its_children_live(
    make: Callable[[float], Coordinator],
) -> None:
    one = make(30.0)
    first = forked(one, "a", "sleep")
    below = Path(f"/proc/{one.agent.pid}/task/{one.agent.pid}/children").read_text().split()
    (warmed,) = [int(pid) for pid in below if int(pid) != first]
    os.kill(warmed, signal.SIGKILL)
    wait_gone([warmed], 5.0)
    second = forked(one, "b", "sleep")
    assert alive(first)
    assert parent(second) == one.agent.pid
    assert one.log().count(", forked") == 2


def test_orphans_of_a_process_do_not_stay_as_zombies(make: Callable[[float], Coordinator]) -> None:
    one = make(30.0)
    forked(one, "a", "orphan")
    exited = one.expect(ProcessExited)
    orphan = int(exited.tail.split()[-1])
    start = time.monotonic()
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() - start < 10.0, "the orphan is still there"
        time.sleep(0.05)
