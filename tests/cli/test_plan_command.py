from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from coral.cli.main import main

ROOT = Path(__file__).parents[2]

CONFIG = """
models:
  - name: tiny
    source: ./nowhere
    slo: {prefill: 2s, decode: 200ms}
    demand: {requests_per_s: 2, input_tokens: 200, output_tokens: 50}
    shape: {architecture: LlamaForCausalLM, layers: 8, hidden: 2048, heads: 16, kv_heads: 8, head_dim: 128,
            intermediate: 8192, vocab: 32000, max_positions: 4096}
generate: {max_nodes: 2, memory_ratio: 1000}
plan: {target_utilization: 1.0}
engine: {use: mock}
clouds:
  - use: static
    name: here
    offers:
      - {type: one, gpu: L4, gpus: 1, region: r, price: 0.8, obtainable: 4, nic: 10Gbit/s}
      - {type: big, gpu: L40S, gpus: 4, region: r, price: 7.5, obtainable: 1, nic: 10Gbit/s}
"""


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    file = tmp_path / "coral.yaml"
    file.write_text(CONFIG)
    return ["plan", "-c", str(file), "--set", f"state.folder={tmp_path / 'state'}"]


def planned(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_json_says_what_runs_where(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = planned(config, capsys)
    assert code == 0
    assert plan["satisfied"]
    assert [(m["machine_type"], m["domain"], m["new"]) for m in plan["machines"]] == [("one", "here/r", 1)]
    (instance,) = plan["instances"]
    layers = [(stage["first_layer"], stage["end_layer"]) for stage in instance["stages"]]
    assert (layers[0][0], layers[-1][1]) == (0, 8)
    assert instance["stages"][0]["nodes"] == [
        {"node_type": "L4 x1", "count": 1, "tp": 1, "throughput": instance["stages"][0]["throughput"]}
    ]
    (service,) = plan["services"]
    assert service["unit"] == "requests/s"
    assert service["served"] == service["demand"] == 2.0 <= service["capacity"]
    assert plan["certificate"]["gap"] <= 1e-4
    assert plan["certificate"]["bound_usd_h"] <= plan["certificate"]["cost_usd_h"]


def test_the_table_is_for_people(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(config) == 0
    out = capsys.readouterr().out
    assert all(part in out for part in ("one", "here/r", "[0, 8) 8", "L4 x1", "gap", "USD/h", "requests/s"))


def test_what_cannot_be_served_is_said_with_exit_code_3(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = planned([*config, "--set", "models.0.demand.requests_per_s=100000"], capsys)
    assert code == 3
    assert not plan["satisfied"]
    assert 0 < plan["services"][0]["fraction"] < 1
    assert any("do not suffice" in note for note in plan["notes"])


def test_nothing_to_be_had(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    none = [f"clouds.0.offers.{i}.obtainable=0" for i in range(2)]
    code, plan = planned([*config, "--set", none[0], "--set", none[1]], capsys)
    assert code == 3
    assert plan["machines"] == []
    assert any("no domain has the machines" in note for note in plan["notes"])
    assert any("1 more one" in note for note in plan["notes"])


@pytest.mark.slow
def test_the_papers_core_setup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = ROOT / "examples" / "paper-core.yaml"
    code, plan = planned(["plan", "-c", str(example), "--set", f"state.folder={tmp_path}"], capsys)
    assert code == 0
    assert plan["satisfied"]
    assert len(plan["services"]) == 6
    certificate = plan["certificate"]
    assert certificate["gap"] <= 1e-4
    assert 0 < certificate["bound_usd_h"] <= certificate["cost_usd_h"]
    price = sum((m["kept"] + m["new"]) * m["price_usd_h"] for m in plan["machines"])
    assert plan["price_usd_h"] == pytest.approx(price)
    assert certificate["cost_usd_h"] == pytest.approx(price + plan["initialization_usd_h"])
    for instance in plan["instances"]:
        stages = instance["stages"]
        assert stages[0]["first_layer"] == 0
        assert all(a["end_layer"] == b["first_layer"] for a, b in pairwise(stages))
        assert min(stage["throughput"] for stage in stages) == pytest.approx(instance["throughput"])
