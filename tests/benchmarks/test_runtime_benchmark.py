"""The runtime's benchmark runs, and its numbers hang together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("torch", reason="the torch engine needs torch")
pytest.importorskip("transformers", reason="the tiny model is made by transformers")


@pytest.mark.slow
def test_it_compares_waves_through_coral_with_the_bare_loop() -> None:
    argv = ["--json", "--models", "tiny", "--batches", "3", "--rounds", "2", "--tiny-tokens", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.runtime", *argv, "--variants", "bare", "instance", "2 stages"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [result["variant"] for result in results] == ["bare", "instance", "2 stages"]
    assert [result["against"] for result in results] == ["bare", "bare", "instance"]
    for result in results:
        assert len(result["ratios"]) == 2
        assert min(result["ratios"]) <= result["ratio"] <= max(result["ratios"])
        for shares in result["shares"].values():
            assert sum(shares.values()) == pytest.approx(1, abs=0.01)
            assert min(shares.values()) >= 0
    assert results[0]["ratio"] == 1
    assert set(results[2]["shares"]) == {"s0n0", "s1n0"}
