"""`coral plan` with other solvers, and with one that does harm."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coral.core.plugins import load_plugins
from coral.errors import CoralError
from coral.testing.processes import alive

MISBEHAVING = Path(__file__).parents[1] / "core" / "solve" / "misbehaving.py"

CONFIG = f"""
models:
  - name: tiny
    source: ./nowhere
    slo: {{prefill: 2s, decode: 200ms}}
    demand: {{requests_per_s: 2, input_tokens: 200, output_tokens: 50}}
    shape: {{architecture: LlamaForCausalLM, layers: 8, hidden: 2048, heads: 16, kv_heads: 8, head_dim: 128,
            intermediate: 8192, vocab: 32000, max_positions: 4096}}
generate: {{max_nodes: 2, memory_ratio: 1000}}
engine: {{use: mock}}
plugins: {{paths: ["{MISBEHAVING}"]}}
clouds:
  - use: static
    offers:
      - {{type: one, gpu: L4, gpus: 1, region: r, price: 0.8, obtainable: 4, nic: 10Gbit/s}}
"""


def planned(tmp_path: Path, solver: str) -> dict[str, Any]:
    """What `coral plan --json` prints as a program of its own."""
    file = tmp_path / "coral.yaml"
    file.write_text(f"{CONFIG}solver: {solver}\n")
    command = [sys.executable, "-c", "from coral.cli.main import run; run()", "plan", "-c", str(file)]
    ran = subprocess.run(
        [*command, "--json", "--set", f"state.folder={tmp_path / 'state'}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize(("name", "options"), [("mip", {}), ("pyomo", {"solver": "appsi_highs"})])
def test_other_solvers_make_the_same_plan(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    try:
        load_plugins().build("solver", name, options)
    except CoralError as error:
        pytest.skip(error.message)
    plan = planned(tmp_path, json.dumps({"use": name, "time_limit": "20s", **options}))
    assert plan["satisfied"]
    assert plan["price_usd_h"] == pytest.approx(0.8)
    assert plan["certificate"]["gap"] <= 1e-4


def test_a_solver_that_aborts(tmp_path: Path) -> None:
    plan = planned(tmp_path, "{use: misbehaving, how: abort}")
    assert plan["satisfied"]
    assert plan["price_usd_h"] == pytest.approx(0.8)
    assert plan["certificate"] is None
    assert any("SIGABRT" in note for note in plan["notes"]), plan["notes"]


def test_a_solver_that_hangs_leaves_nothing_running(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    how = json.dumps({"use": "misbehaving", "how": "start a process and hang", "pids": str(pids)})
    plan = planned(tmp_path, how[:-1] + ', "time_limit": "1s"}')
    assert plan["satisfied"]
    assert any("was killed" in note for note in plan["notes"]), plan["notes"]
    until = time.monotonic() + 5.0
    while alive(int(pids.read_text())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(int(pids.read_text()))
