"""The front door's benchmark runs and its numbers hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_measures_both_servers() -> None:
    argv = ["--json", "--connections", "4", "--seconds", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.frontdoor", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [result["variant"] for result in results] == ["naive", "ours"]
    for result in results:
        assert 0 < result["req_per_s"] <= 6.1  # four streams of a second each, and the edges of the window
        assert result["tokens_per_s"] == pytest.approx(50 * result["req_per_s"], rel=0.05)
        assert 0 < result["core_share"] < 2
