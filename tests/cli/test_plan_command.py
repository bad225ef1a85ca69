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


def test_a_plan_is_saved_and_compared(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "plans" / "old.json"
    code, plan = planned([*config, "--save", str(saved)], capsys)
    assert code == 0
    assert json.loads(saved.read_text()) == plan
    assert [path.name for path in saved.parent.iterdir()] == ["old.json"]
    code, again = planned([*config, "--diff", str(saved)], capsys)
    assert (code, again["diff"]["changed"]) == (0, False)
    code, more = planned(
        [*config, "--diff", str(saved), "--set", "models.0.demand.requests_per_s=40000"], capsys
    )
    assert (code, more["diff"]["changed"]) == (3, True)
    assert [m["machine_type"] for m in more["diff"]["machines"]] == ["big", "one"]
    (service,) = more["diff"]["services"]
    assert service["demand"] == {"before": 2.0, "after": 40000.0}
    assert main([*config, "--diff", str(saved)]) == 0
    assert f"nothing changes against {saved}" in capsys.readouterr().out


def test_an_old_plan_of_another_version_is_refused(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.json"
    old.write_text('{"format": 99}')
    assert main([*config, "--diff", str(old)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{old} is no plan document that this version reads: it has format 99" in err


def test_a_plan_that_cannot_be_saved(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([*config, "--save", str(tmp_path / "file" / "plan.json")]) == 1
    assert "give --save a file in a folder that can be written" in capsys.readouterr().err


def test_what_if_compares(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    offer = 'offers."here/r:one:on_demand"'
    code, plan = planned(
        [*config, "--what-if", f"{offer}.price=9", "--what-if", "models.tiny.demand=3"], capsys
    )
    assert code == 0
    assert plan["machines"][0]["machine_type"] == "big"
    what_if = plan["what_if"]
    assert what_if["changes"] == [
        {"path": f"{offer}.price", "before": 0.8, "after": 9.0},
        {"path": 'models."tiny".demand', "before": 2.0, "after": 3.0},
    ]
    assert what_if["before"]["machines"][0]["machine_type"] == "one"
    assert what_if["difference"]["price_usd_h"] == {"before": 0.8, "after": 7.5}
    assert main([*config, "--what-if", f"{offer}.price=9"]) == 0
    out = capsys.readouterr().out
    assert f"what if {offer}.price were 9 and not 0.8" in out
    assert "0.8000 → 7.5000 USD/h (+6.7000)" in out


def test_what_if_an_slo_changes_its_templates_do(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = planned([*config, "--what-if", "models.tiny.slo.decode=5ms"], capsys)
    before = plan["what_if"]["before"]
    assert code == 0
    assert [m["machine_type"] for m in before["machines"]] == ["one"]
    assert [m["machine_type"] for m in plan["machines"]] == ["big"]


def test_a_plan_is_explained(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = planned([*config, "--explain", "--top", "1"], capsys)
    assert code == 0
    told = plan["explanation"]
    (instance,) = told["instances"]
    assert instance["unit"] == "USD/1k requests"
    assert instance["price"]["usd_h"] == 0.8
    assert instance["next_best"]["nodes"] != instance["price"]["nodes"]
    assert [one["kind"] for one in told["answers"]] == ["machine", "demand", "template", "slo"]
    for one in told["answers"]:
        assert one["figure"]["how"] == "re-solved"
        assert one["figure"]["gap"] is not None
        assert one["figure"]["least_usd_h"] <= one["figure"]["usd_h"] <= one["figure"]["most_usd_h"]
    second = told["answers"][2]
    assert second["about"] == "tiny mixed without L4 x1"
    assert second["figure"]["told_apart"]
    assert [one["count"] for one in second["instead"]] == [1]
    assert told["solves"] == 4
    assert main([*config, "--explain"]) == 0
    out = capsys.readouterr().out
    for heading in (
        "why these instances",
        "why these machines",
        "which limits bind",
        "what one more request/s costs",
        "what one planned machine less would cost",
        "second best for each service",
        "what a latency limit costs",
        "estimate (linear)",
    ):
        assert heading in out
    assert "USD/h more" in out


def test_each_flag_has_an_example_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for example in (
        "coral plan --config examples/paper-core.yaml --explain",
        "--explain --top 5",
        "--save plan.json",
        "--diff plan.json",
        "'models.\"phi-4\".demand=12'",
        "'offers.\"here/r:big:spot\".price=0.5'",
        "models.0.slo.prefill=2s",
    ):
        assert example in text, example


def test_what_if_is_infeasible(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = planned([*config, "--what-if", "models.tiny.demand=100000"], capsys)
    assert code == 3
    assert plan["what_if"]["before"]["satisfied"]
    assert not plan["satisfied"]


def test_what_if_of_something_unknown(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*config, "--what-if", "models.tinny.demand=1"]) == 2
    assert 'did you mean models."tiny"?' in capsys.readouterr().err


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


@pytest.mark.parametrize("planner", ["homo", "cauchy", "melange", "helix"])
def test_another_planner(config: list[str], capsys: pytest.CaptureFixture[str], planner: str) -> None:
    code, plan = planned([*config, "--set", f"plan.planner.use={planner}"], capsys)
    assert code == 0
    assert plan["planner"] == planner
    assert plan["satisfied"]


def test_options_of_another_planner(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [*config, "--set", "plan.planner.use=homo", "--set", "plan.planner.choose=ilp"]
    code, plan = planned(chosen, capsys)
    assert code == 0
    assert plan["certificate"]["gap"] <= 1e-4
    assert main([*chosen, "--set", "plan.planner.chose=ilp"]) == 2
    assert "did you mean choose?" in capsys.readouterr().err
