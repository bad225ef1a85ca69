"""A real agent process, driven by a socket that plays the coordinator."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coral.core.serve.agent.log import BoundedLog
from coral.core.serve.net.wire import ProcessExited, Shutdown, StartProcess, StopProcess
from coral.testing.agent import PlayedCoordinator, wait_gone
from coral.testing.processes import alive

SLEEPER = (sys.executable, "-c", "import time; time.sleep(120)")


def test_an_exit_is_reported_with_code_and_last_words(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    one.start(
        "talker", (sys.executable, "-c", "import sys; print('last words', file=sys.stderr); sys.exit(3)")
    )
    exited = one.expect(ProcessExited)
    assert (exited.process, exited.code, exited.tail, exited.reason) == ("talker", 3, "last words", "")


def test_a_program_that_is_not_there_is_an_exit_with_a_reason(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    one.send(StartProcess(process="ghost", argv=("/no/such/program",)))
    exited = one.expect(ProcessExited)
    assert exited.code == 127
    assert "/no/such/program" in exited.reason


def test_stop_kills_what_ignores_the_request_and_its_children(
    make: Callable[[float], PlayedCoordinator],
) -> None:
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
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(30.0)
    eater = (sys.executable, "-c", "b = b'x' * (200 << 20); import time; time.sleep(120)")
    one.start("eater", eater, memory_bytes=100 << 20)
    exited = one.expect(ProcessExited)
    assert exited.code == -signal.SIGKILL
    assert "its limit is 100 MiB" in exited.reason


def test_a_process_within_its_memory_lives(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    pid = one.start("modest", SLEEPER, memory_bytes=200 << 20)
    with pytest.raises(AssertionError, match="no ProcessExited"):
        one.expect(ProcessExited, timeout_s=2.0)
    assert alive(pid)


def test_silence_longer_than_the_grace_time_ends_everything(
    make: Callable[[float], PlayedCoordinator],
) -> None:
    one = make(2.0)
    pid = one.start("sleeper", SLEEPER)
    assert wait_gone([pid, one.agent.pid], 10.0) >= 1.0
    assert one.agent.wait(5) == 0
    assert "silent for 2 s" in one.log()


def test_shutdown_and_sigterm_end_everything(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    pid = one.start("sleeper", SLEEPER)
    one.send(Shutdown(grace_s=1.0, reason="released"))
    wait_gone([pid, one.agent.pid], 8.0)
    two = make(30.0)
    pid = two.start("sleeper", SLEEPER)
    two.agent.terminate()
    wait_gone([pid, two.agent.pid], 8.0)


def test_kill_9_of_the_agent_takes_its_processes_along(make: Callable[[float], PlayedCoordinator]) -> None:
    one = make(30.0)
    pid = one.start("sleeper", SLEEPER)
    os.kill(one.agent.pid, signal.SIGKILL)
    one.agent.wait(5)
    wait_gone([pid], 5.0)


def test_output_is_bounded(make: Callable[[float], PlayedCoordinator]) -> None:
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
