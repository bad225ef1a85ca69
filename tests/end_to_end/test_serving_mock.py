"""`coral serve` whole, with the mock engine: real processes, sockets, HTTP, a layout of the plan's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coral.testing.pipeline import pipeline_config
from coral.testing.system import PROGRAM, ServingSystem, coral_serve
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until

GRACE_S = 3.0


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("models") / "tiny", layers=6)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that the library is built once."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def config(tiny: Path, state: Path, tmp_path: Path) -> dict[str, Any]:
    """Machines too small for the whole model, so that only a pipeline serves it."""
    cost = {"overhead_s": 0.001, "layer_s": 0.0005}
    return pipeline_config(
        tiny, cloud=tmp_path / "cloud", state=state, cost=cost, grace=GRACE_S, start_timeout="60s"
    )


@pytest.fixture
def system(config: dict[str, Any], tmp_path: Path) -> Iterator[ServingSystem]:
    with coral_serve(config, tmp_path) as made:
        made.wait_ready()
        yield made


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hello there", "max_tokens": 12, "temperature": 0, **more}


def test_it_comes_up_answers_and_ends_with_nothing_left(system: ServingSystem) -> None:
    assert system.get("/ready")[0] == 200
    code, answer = system.post("/v1/completions", body())
    assert code == 200, answer
    assert answer["usage"]["completion_tokens"] == 12
    assert system.post("/v1/completions", body())[1]["choices"] == answer["choices"]
    state = system.status()
    assert state["phase"] == "up"
    assert state["requests"]["finished"] == 2
    running = system.processes()
    for instance in state["instances"]:
        assert instance["scheduler"]["pid"] in running
        for stage in instance["stages"]:
            assert {node["pid"] for node in stage["nodes"]} <= set(running)
    assert {machine["agent_pid"] for machine in state["machines"]} <= set(running)
    assert "curl http://127.0.0.1:" in system.output()
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, "status", "--url", str(system.url)], capture_output=True, check=True
    )
    for stage in state["instances"][0]["stages"]:
        assert str(stage["nodes"][0]["pid"]) in shown.stdout.decode()
    assert system.stop(signal.SIGTERM) == 0
    system.wait_gone(2.0)


def test_what_runs_is_what_coral_plan_says(system: ServingSystem, tmp_path: Path) -> None:
    state = system.status()
    assert system.stop(signal.SIGINT) == 0
    argv = [sys.executable, "-c", PROGRAM, "plan", "--json", "--config", str(tmp_path / "coral.yaml")]
    plan = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=120).stdout)
    assert state["plan"]["price_usd_h"] == plan["price_usd_h"]
    rented = Counter(machine["type"] for machine in state["machines"])
    assert rented == {one["machine_type"]: one["kept"] + one["new"] for one in plan["machines"]}
    wanted = [
        (one["template"], [(s["first_layer"], s["end_layer"], _nodes(s["nodes"])) for s in one["stages"]])
        for one in plan["instances"]
        for _ in range(one["count"])
    ]
    running = [
        (
            one["template"],
            [
                (s["first_layer"], s["end_layer"], Counter(n["node_type"] for n in s["nodes"]))
                for s in one["stages"]
            ],
        )
        for one in state["instances"]
    ]
    assert running == wanted
    assert len(wanted[0][1]) > 1, "no machine holds the model alone"


def test_more_memory_changes_what_runs(config: dict[str, Any], tmp_path: Path) -> None:
    config["clouds"][0]["machines"][1]["memory"] = "4GiB"
    with coral_serve(config, tmp_path) as system:
        system.wait_ready()
        [instance] = system.status()["instances"]
        assert [(s["first_layer"], s["end_layer"]) for s in instance["stages"]] == [(0, 24)]
        assert system.stop() == 0


def test_dry_run_starts_nothing(config: dict[str, Any], tmp_path: Path) -> None:
    with coral_serve(config, tmp_path, ["--dry-run", "--json"]) as system:
        assert system.process.wait(90) == 0, system.log()
        plan = json.loads(system.output())
        assert plan["price_usd_h"] == 0.25
        assert "renting" not in system.log()
        system.wait_gone(2.0)


def test_a_port_that_is_taken_ends_the_start_with_the_mend(config: dict[str, Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config["serve"]["http"] = f"127.0.0.1:{taken.getsockname()[1]}"
        with coral_serve(config, tmp_path) as system:
            assert system.process.wait(60) == 2
            assert "cannot listen on" in system.log()
            system.wait_gone(2.0)


def _nodes(nodes: list[dict[str, Any]]) -> Counter[str]:
    return Counter({node["node_type"]: node["count"] for node in nodes})


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("preparing", signal.SIGINT),
        ("templates:", signal.SIGTERM),
        pytest.param(
            "planner is up",
            signal.SIGHUP,
            marks=pytest.mark.skipif(
                signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="inherited: it is to be ignored"
            ),
        ),
        ("starts:", signal.SIGINT),
        ("workers loaded", signal.SIGTERM),
    ],
)
def test_signals_while_it_comes_up_leave_nothing(
    config: dict[str, Any], tmp_path: Path, words: str, number: signal.Signals
) -> None:
    config["engine"]["load"] = "20s"
    with coral_serve(config, tmp_path) as system:
        system.wait_said(words if words != "workers loaded" else "starts:")
        if words == "workers loaded":
            wait_until(lambda: any("serve.worker" in line for line in system.processes().values()), 30)
        assert system.stop(number) == 0, system.log()
        system.wait_gone(2.0)


def test_a_request_in_flight_finishes_before_the_end(system: ServingSystem) -> None:
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(system.post("/v1/completions", body(max_tokens=60)))
    )
    asking.start()
    wait_until(lambda: system.status()["requests"]["in_flight"] == 1, 10)
    assert system.stop(signal.SIGTERM) == 0
    asking.join(10)
    [(code, answer)] = answers
    assert (code, answer["usage"]["completion_tokens"]) == (200, 60)


def test_a_second_signal_does_not_wait_for_requests(config: dict[str, Any], tmp_path: Path) -> None:
    config["engine"]["cost"]["overhead_s"] = 0.2
    config["serve"]["drain_timeout"] = "60s"
    with coral_serve(config, tmp_path) as system:
        system.wait_ready()
        answers: list[int] = []

        def ask() -> None:
            try:
                answers.append(system.post("/v1/completions", body(max_tokens=400))[0])
            except OSError:  # cut off
                answers.append(0)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: system.status()["requests"]["in_flight"] == 1, 10)
        system.process.send_signal(signal.SIGINT)
        system.wait_said("stopping", 10)
        started = time.monotonic()
        assert system.stop(signal.SIGINT, within_s=20) == 0
        assert time.monotonic() - started < 15
        asking.join(10)
        assert answers[0] != 200
        system.wait_gone(2.0)


def test_kill_9_of_the_coordinator_ends_everything_within_the_grace_time(system: ServingSystem) -> None:
    assert len(system.processes()) >= 4
    system.process.kill()
    system.process.wait(5)
    seconds = system.wait_gone(GRACE_S + 7.0)
    assert seconds <= GRACE_S + 7.0


def test_a_killed_worker_costs_no_request(config: dict[str, Any], tmp_path: Path) -> None:
    two_instances(config)
    with coral_serve(config, tmp_path) as system:
        system.wait_ready()
        assert len(system.status()["instances"]) == 2
        answers: list[tuple[int, Any]] = []

        def ask() -> None:
            answers.append(system.post("/v1/completions", body(max_tokens=80)))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for one in asking:
            one.start()
        wait_until(lambda: system.status()["requests"]["in_flight"] == 4, 10)
        loaded = next(i for i in system.status()["instances"] if i["load"])
        os.kill(loaded["stages"][-1]["nodes"][0]["pid"], signal.SIGKILL)
        for one in asking:
            one.join(30)
        assert [code for code, _ in answers] == [200] * 4
        texts = {answer["choices"][0]["text"] for _, answer in answers}
        assert len(texts) == 1, "a replay goes on with the same tokens"
        assert system.status()["requests"]["moved"] >= 1
        assert system.stop() == 0


def test_where_the_only_instance_dies_the_request_waits_for_its_successor(system: ServingSystem) -> None:
    expected = system.post("/v1/completions", body(max_tokens=80))[1]["choices"]
    [instance] = system.status()["instances"]
    answers: list[tuple[int, Any]] = []
    asking = threading.Thread(
        target=lambda: answers.append(system.post("/v1/completions", body(max_tokens=80)))
    )
    asking.start()
    wait_until(lambda: system.status()["requests"]["in_flight"] == 1, 10)
    os.kill(instance["stages"][-1]["nodes"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: system.status()["requests"]["stranded"] == 1, 10)
    code, answer = system.post("/v1/completions", body(max_tokens=80))
    assert (code, answer.get("choices")) == (200, expected), "a new one waits for the successor too"
    asking.join(40)
    assert [(code, answer["choices"]) for code, answer in answers] == [(200, expected)]
    assert system.stop() == 0


def test_a_worker_that_eats_too_much_is_ended_and_the_reason_shown(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """The mock engine says that it needs nothing beside the weights; a real Python process does."""
    del config["models"][0]["shape"]
    config["generate"] = {"memory_ratio": 1e6, "max_nodes": 1}
    config["engine"]["load"] = "30s"
    config["clouds"][0]["machines"] = [{"name": "narrow", "memory": "12MiB", "price": 0.1, "count": 2}]
    with coral_serve(config, tmp_path) as system:
        wait_until(lambda: system.process.poll() is not None, 60)
        assert system.process.returncode == 1, system.log()
        assert "its limit is 12 MiB" in system.log()
        assert "has failed 3 times" in system.log()
        system.wait_gone(2.0)


PLUGIN = '''
"""A router and a listener beside the config; both write down what they are told."""
from __future__ import annotations
from pathlib import Path
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import Options

def note(text):
    with Path(__file__).with_name("notes").open("a") as file:
        file.write(text + "\\n")

class Last:
    def pick(self, request, among, now):
        note(f"pick {request.max_tokens}")
        return among[-1]
    def done(self, request, candidate, now):
        note("done")

def build(options):
    return Last()

@hookimpl
def coral_routers():
    return [Component(name="last", summary="the last one", options=Options, build=build)]

@hookimpl
def coral_plan_made(plan, previous):
    note(f"plan {plan.price_usd_h}")

@hookimpl
def coral_instance_changed(instance, model, before, after):
    note(f"{model} {before} {after}")

@hookimpl
def coral_request_finished(request, model, finish, prompt_tokens, output_tokens, seconds):
    note(f"finished {finish} {output_tokens}")
    raise RuntimeError("a listener that fails stops nothing")
'''


def test_a_router_and_listeners_beside_the_config(config: dict[str, Any], tmp_path: Path) -> None:
    """Of two instances all requests go where the router says; the router of the house would share them."""
    two_instances(config)
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    config["plugins"] = {"paths": ["./my_plugin.py"]}
    config["router"] = {"use": "last"}
    with coral_serve(config, tmp_path) as system:
        system.wait_ready()
        for _ in range(4):
            assert system.post("/v1/completions", body(max_tokens=5))[0] == 200
        wait_until(lambda: sum(picks(system).values()) == 4, 10)
        assert sorted(picks(system).values()) == [0, 4]
        assert system.stop() == 0
    notes = (tmp_path / "notes").read_text().splitlines()
    assert notes[0] == "plan 0.4"
    assert Counter(notes) >= Counter({"tiny placed loading": 2, "tiny loading ready": 2})
    assert Counter(notes) >= Counter({"pick 5": 4, "finished length 5": 4, "done": 4})


def two_instances(config: dict[str, Any]) -> None:
    """A demand that takes two pipelines of two machines each."""
    config["models"][0]["demand"]["requests_per_s"] = 800
    config["generate"] = {"max_nodes": 2}
    config["clouds"][0]["machines"] = [{"name": "half", "memory": "900MiB", "price": 0.1, "count": 4}]


def picks(system: ServingSystem) -> dict[str, int]:
    """Requests that each instance has taken, as its scheduler counts."""
    return {
        one["id"]: sum(node["picks"] for node in one["stages"][0]["nodes"])
        for one in system.status()["instances"]
    }


SOLVER = '''
from __future__ import annotations
import os, time
from pathlib import Path
from pydantic import BaseModel
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component

class BadOptions(BaseModel):
    pass

class Bad:
    """Solves by HiGHS once; then does what the file says."""
    def __init__(self):
        from coral_solver_highs.options import HighsOptions
        from coral_solver_highs.solver import build
        self.inner = build(HighsOptions())
        self.features = self.inner.features
    def solve(self, program, **options):
        what = Path(__file__).with_name("do").read_text()
        if what == "abort":
            os.abort()
        if what == "hang":
            time.sleep(600)
        return self.inner.solve(program, **options)

def build(options):
    return Bad()

@hookimpl
def coral_solvers():
    return [Component(name="bad", summary="fails", options=BadOptions, build=build)]
'''


PLANNER = (
    SOLVER.replace("Solver", "Planner")
    .replace("coral_solvers", "coral_planners")
    .replace(
        """        from coral_solver_highs.options import HighsOptions
        from coral_solver_highs.solver import build
        self.inner = build(HighsOptions())
        self.features = self.inner.features
    def solve(self, program, **options):""",
        """        from coral.core.plan.planners.coral import build
        from coral.core.plan.planners.options import CoralOptions
        self.inner = build(CoralOptions())
    def plan(self, *given):""",
    )
    .replace("self.inner.solve(program, **options)", "self.inner.plan(*given)")
)


@pytest.mark.parametrize("what", ["abort", "hang"])
@pytest.mark.parametrize(
    ("source", "kind", "told"),
    [
        (SOLVER, "solver", "the solver failed in the end: solver 'bad'"),
        (PLANNER, "planner", "the running plan stays"),
    ],
    ids=["solver", "planner"],
)
def test_a_solver_or_planner_that_aborts_or_hangs_stalls_no_stream(
    config: dict[str, Any], tmp_path: Path, what: str, source: str, kind: str, told: str
) -> None:
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "do").write_text("solve")
    config["plugins"] = {"paths": ["./bad.py"]}
    config["solver"] = {"time_limit": "1s", **({"use": "bad"} if kind == "solver" else {})}
    config["plan"] = {"every": "2s", **({"planner": {"use": "bad"}} if kind == "planner" else {})}
    with coral_serve(config, tmp_path) as system:
        system.wait_ready()
        before = [one["id"] for one in system.status()["instances"]]
        (tmp_path / "do").write_text(what)
        worst: list[float] = []
        deadline = time.monotonic() + 20
        while told not in system.log() and time.monotonic() < deadline:
            started = time.monotonic()
            code, answer = system.post("/v1/completions", body())
            worst.append(time.monotonic() - started)
            assert code == 200, answer
        assert told in system.log(), system.log()
        assert max(worst) < 5.0
        assert system.post("/v1/completions", body())[0] == 200
        assert [one["id"] for one in system.status()["instances"]] == before
        assert system.stop() == 0
        system.wait_gone(2.0)


def test_a_client_that_leaves_frees_its_request(system: ServingSystem) -> None:
    import http.client

    host = (system.url or "").removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps(body(max_tokens=400, stream=True)),
        {"Content-Type": "application/json"},
    )
    answer = connection.getresponse()
    assert answer.read(10)
    assert system.status()["requests"]["in_flight"] == 1
    answer.close()
    connection.close()
    wait_until(lambda: system.status()["requests"]["in_flight"] == 0, 3)
    assert system.status()["requests"]["aborted"] == 1

    def all_free() -> bool:
        nodes = [n for i in system.status()["instances"] for s in i["stages"] for n in s["nodes"]]
        engines = [node.get("engine", {"requests": 1}) for node in nodes]
        return all(e["requests"] == 0 and e["free_blocks"] == e["total_blocks"] for e in engines)

    wait_until(all_free, 10, "freeing of all KV blocks")
