"""The SLO benchmark: its sizes are what the plan is told, its shares are counted right, and it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.http_load import Streamed
from benchmarks.slo import attained
from benchmarks.slo_sizes import DRAWN, Sizes, percentile
from coral.testing.tiny import make_tiny

ROOT = Path(__file__).resolve().parents[2]


def test_sizes_have_the_means_and_the_percentile_that_the_plan_is_told() -> None:
    sizes = Sizes(64, 32, 5, limit=900)
    drawn = [sizes[number] for number in range(DRAWN)]
    assert sizes.prompt_mean == sum(prompt for prompt, _ in drawn) / DRAWN
    assert sizes.prompt_mean == pytest.approx(64, rel=0.1)
    assert sizes.output_mean == pytest.approx(32, rel=0.1)
    assert sum(prompt <= sizes.prompt_quantile for prompt, _ in drawn) / DRAWN >= 0.95
    assert sum(prompt < sizes.prompt_quantile for prompt, _ in drawn) / DRAWN < 0.95
    assert max(prompt + output for prompt, output in drawn) <= 900
    assert sizes[DRAWN + 3] == sizes[3]


def test_a_failed_answer_attains_nothing() -> None:
    seen = [Streamed(asked_s=1.0, first_s=1.0 + number / 10, last_s=3.0) for number in range(9)]
    found = attained([*seen, Streamed(error="503")], 0.65, lambda one: one.ttft_s)
    assert found.attainment == 0.7
    assert not found.met
    assert found.p50 == pytest.approx(0.4)
    assert percentile([1.0, 2.0], 0.5) == 1.0


@pytest.mark.slow
def test_it_plans_serves_and_reports(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the torch engine needs torch")
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    arguments = {
        "minutes": "0.05",
        "flood-s": "2",
        "state": str(tmp_path),
        "source": str(make_tiny("llama", tmp_path / "tiny")),
        "input-tokens": "60",
        "output-tokens": "8",
        "max-model-len": "256",
        "utilization": "0.05",
        "prefill-s": "1",
        "decode-s": "0.1",
    }
    words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.slo", "--json", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["failed"] == 0
    assert report["requests"] > 0
    assert report["ttft"]["p50"] > 0
    assert report["measured_concurrency"] > 0
