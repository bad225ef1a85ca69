"""The benchmark of handing over runs, and its numbers hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_it_measures_overlap_and_second_token() -> None:
    argv = ["--json", "--engine", "mock", "--tokens", "96", "--chunk", "32", "--repeats", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.handover", *argv],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    (overlap,), (second,) = report["overlap"], report["second_token"]
    assert 0 <= overlap["gone_over"] <= 1
    assert overlap["best"] == pytest.approx(1 - 1 / 3 / 2, abs=1e-3)
    assert overlap["megabytes"] == pytest.approx(96 * 30 * 8 / 1e6, abs=0.01)
    assert second["ratio"] == pytest.approx(second["chunked_s"] / second["after_prefill_s"], rel=0.02)
    assert 0 < second["tail_chunked_s"] < second["chunked_s"]
