"""What a test has started ends with the test, however the test ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coral.testing.guardian import marked
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until

TEST = """
import json, sys
from pathlib import Path
from coral.testing.system import coral_serve
with coral_serve(json.loads(sys.argv[1]), Path(sys.argv[2])) as system:
    system.wait_ready()
    print(system.mark, flush=True)
    system.process.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_system_ends_with_a_test_that_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    """Its agents and workers too, which are detached and would wait out a grace time of their own."""
    model = {
        "name": "tiny",
        "source": str(make_tiny("llama", tmp_path / "tiny", layers=2)),
        "slo": {"prefill": "2s", "decode": "500ms"},
        "demand": {"requests_per_s": 1, "input_tokens": 20, "output_tokens": 10},
        "dtype": "float32",
    }
    config = {
        "models": [model],
        "engine": {"use": "mock", "vocab": 259, "cost": {"overhead_s": 0.001}},
        "clouds": [
            {"use": "local", "folder": str(tmp_path / "cloud"), "machines": [{"name": "m", "memory": "1GiB"}]}
        ],
        "serve": {"http": "127.0.0.1:0", "grace": 300},
        "state": {"folder": str(tmp_path / "state")},
    }
    argv = [sys.executable, "-c", TEST, json.dumps(config), str(tmp_path)]
    test = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert test.stdout is not None
    with test.stdout:
        mark = test.stdout.readline().strip()
        try:
            wait_until(lambda: len(marked(mark)) >= 5, 30.0, "coordinator, planner, agent, scheduler, worker")
            test.send_signal(number)
            test.wait(30)
            wait_until(lambda: not marked(mark), 30.0, "the end of what it had started")
        finally:
            test.kill()
            test.wait(10)
