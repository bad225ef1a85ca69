"""A coordinator that is killed, and one that comes after it: what runs goes on, nothing is left over."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coral.testing.pipeline import pipeline_config
from coral.testing.processes import alive
from coral.testing.restarts import Runs, Stream, all_free, loads, pids, running
from coral.testing.system import PROGRAM, coral_serve
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("models") / "tiny", layers=6)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def config(tiny: Path, state: Path, tmp_path: Path) -> dict[str, Any]:
    """A pipeline over two machines, with room for more."""
    cost = {"overhead_s": 0.005, "layer_s": 0.0005}
    return pipeline_config(
        tiny, cloud=tmp_path / "cloud", state=state, cost=cost, grace="60s", start_timeout="60s"
    )


@pytest.fixture
def runs(config: dict[str, Any], tmp_path: Path) -> Iterator[Runs]:
    with running(config, tmp_path) as made:
        yield made


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "Hello there", "max_tokens": 12, "temperature": 0, **more}


def test_a_killed_coordinator_is_followed_by_one_that_takes_over_what_runs(runs: Runs) -> None:
    old = runs.start()
    old.wait_ready()
    expected = old.post("/v1/completions", body())[1]["choices"]
    wait_until(lambda: all_free(old), 10)
    before = old.status()
    streams = [Stream(old, body(max_tokens=1500)) for _ in range(6)]
    wait_until(lambda: all(one.text.count(b"data:") > 3 for one in streams), 20)
    runs.kill()
    wait_until(lambda: all(one.ended for one in streams), 20, "the end of all streams")
    assert not any(one.whole for one in streams), "each is told that it is cut off"

    started = time.monotonic()
    new = runs.start()
    new.wait(lambda: new.get("/ready")[0] == 200, 60, "readiness")
    code, answer = new.post("/v1/completions", body())
    assert time.monotonic() - started < 60
    assert (code, answer["choices"]) == (200, expected)
    wait_until(lambda: all_free(new), 20, "freeing of what the lost requests held")
    new.wait(lambda: pids(new.status()) == pids(before), 20, "the same processes")
    after = new.status()
    assert loads(after) == loads(before), "no weights were loaded again"
    assert after["adopted"]["instances"] == [one["id"] for one in before["instances"]]
    assert set(after["adopted"]["machines"]) == {one["id"] for one in before["machines"]}
    assert after["deployment"] == before["deployment"]
    new.wait_ready()
    assert pids(new.status()) == pids(before), "the first plan changes nothing"
    assert "renting" not in new.log()
    code, listed = new.get("/coral/v1/plans?newest=500")
    assert code == 200
    assert [one["reason"] for one in listed["plans"]][-1] == "start"
    assert new.get(f"/coral/v1/plans/{listed['plans'][0]['number']}")[1]["plan"] == new.status()["plan"]
    assert new.get("/coral/v1/plans/99999")[0] == 404
    assert new.get("/coral/v1/plans?newest=0")[0] == 400
    assert new.stop(signal.SIGTERM) == 0
    runs.wait_gone()
    argv = [sys.executable, "-c", PROGRAM, "plan", "history", "--config", str(runs.config_path)]
    shown = subprocess.run(argv, capture_output=True, check=True, timeout=60, text=True).stdout
    assert "start" in shown
    told = subprocess.run([*argv, "--json"], capture_output=True, check=True, timeout=60).stdout
    kept = json.loads(told)
    assert kept[: len(listed["plans"])] == listed["plans"][: len(kept)]
    one = subprocess.run(
        [*argv, str(kept[0]["number"])], capture_output=True, check=True, timeout=60, text=True
    )
    assert "big" in one.stdout


def test_killed_twice_in_a_row(runs: Runs) -> None:
    """The second time before the one that came after it is up."""
    old = runs.start()
    old.wait_ready()
    before = old.status()
    runs.kill()
    runs.start().wait_said("taking over", 60)
    runs.kill()
    new = runs.start()
    new.wait_ready()
    new.wait(lambda: pids(new.status()) == pids(before), 20, "the same processes")
    assert new.post("/v1/completions", body())[0] == 200
    assert new.stop() == 0
    runs.wait_gone()


@pytest.mark.parametrize("words", ["renting", "starts:"])
def test_killed_while_it_comes_up(runs: Runs, words: str) -> None:
    """While machines are rented; while instances load."""
    runs.config["engine"]["load"] = "3s"
    old = runs.start()
    old.wait_said(words)
    if words == "starts:":
        old.wait(lambda: any("serve.worker" in line for line in old.processes().values()), 30, "workers")
    runs.kill()
    new = runs.start()
    new.wait_ready()
    assert new.post("/v1/completions", body())[0] == 200
    new.wait(lambda: 0 not in pids(new.status()), 20, "all agents")
    running = set(runs.processes())
    state = new.status()
    assert pids(state) <= running
    agents = {pid for pid, line in runs.processes().items() if "coral.core.serve.agent" in line}
    assert agents <= pids(state), "no agent runs that nobody knows"
    assert new.stop() == 0
    runs.wait_gone()


def test_one_that_is_configured_otherwise_makes_way(runs: Runs) -> None:
    old = runs.start()
    old.wait_ready()
    before = old.status()
    runs.kill()
    runs.config["engine"]["cost"]["overhead_s"] = 0.001
    new = runs.start()
    new.wait_ready()
    [was] = before["instances"]
    new.wait(
        lambda: [one["state"] for one in new.status()["instances"] if one["id"] != was["id"]] == ["ready"],
        60,
        "the successor",
    )
    new.wait(lambda: not alive(was["scheduler"]["pid"]), 30, "the end of the old instance")
    assert f"{was['id']} of an earlier run makes way" in new.log()
    assert new.post("/v1/completions", body())[0] == 200
    assert new.stop() == 0
    runs.wait_gone()


def test_a_model_that_is_no_longer_configured_ends(runs: Runs, tiny: Path) -> None:
    old = runs.start()
    old.wait_ready()
    before = old.status()
    runs.kill()
    runs.config["models"][0]["name"] = "other"
    new = runs.start()
    new.wait_ready()
    [was] = before["instances"]
    assert f"{was['id']} of an earlier run is ended: the config has no model tiny any more" in new.log()
    new.wait(lambda: not alive(was["scheduler"]["pid"]), 30, "the end of the old instance")
    assert new.post("/v1/completions", body(model="other"))[0] == 200
    assert new.stop() == 0
    runs.wait_gone()


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_without_its_store_everything_is_found_through_the_clouds_and_given_back(
    runs: Runs, state: Path, how: str
) -> None:
    old = runs.start()
    old.wait_ready()
    before = old.status()
    runs.kill()
    for file in state.glob("coral.db*"):
        file.unlink() if how == "deleted" or file.name != "coral.db" else file.write_bytes(b"no store" * 999)
    new = runs.start()
    new.wait_ready()
    assert "an earlier run left" in new.log()
    if how == "damaged":
        assert "is kept as coral.db.damaged-" in new.log()
    assert not [pid for pid in pids(before) if alive(pid)]
    assert new.post("/v1/completions", body())[0] == 200
    assert new.stop() == 0
    runs.wait_gone()


def test_killed_while_an_instance_drains(runs: Runs) -> None:
    """What drains has lost its clients with the coordinator, and ends; its successor goes on."""
    runs.config["engine"]["cost"]["overhead_s"] = 0.08
    old = runs.start()
    old.wait_ready()
    [was] = old.status()["instances"]
    runs.kill()
    runs.config["engine"]["cost"]["token_s"] = 2e-6
    runs.config["engine"]["load"] = "2s"
    runs.config["serve"]["drain_timeout"] = "60s"
    two = runs.start()
    two.wait(lambda: two.get("/ready")[0] == 200, 60, "readiness")
    stream = Stream(two, body(max_tokens=2000))
    two.wait(lambda: stream.text.count(b"data:") > 3, 20, "the stream")
    two.wait(
        lambda: "draining" in [one["state"] for one in two.status()["instances"] if one["id"] == was["id"]],
        60,
        "the draining of the old instance",
    )
    runs.kill()
    wait_until(lambda: stream.ended, 20)
    three = runs.start()
    three.wait_ready()
    assert f"{was['id']} of an earlier run is ended: it was draining" in three.log()
    three.wait(lambda: not alive(was["scheduler"]["pid"]), 30, "the end of the old instance")
    assert three.post("/v1/completions", body())[0] == 200
    assert three.stop() == 0
    runs.wait_gone()


def test_a_full_disk_is_said_and_serving_goes_on_also_over_a_restart(runs: Runs) -> None:
    """No file of the coordinator's may grow: a worker's death is survived, and so is the coordinator's."""
    old = runs.start()
    old.wait_ready()
    resource.prlimit(old.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    [was] = old.status()["instances"]
    os.kill(was["stages"][0]["nodes"][0]["pid"], signal.SIGKILL)
    old.wait(
        lambda: [one["state"] for one in old.status()["instances"] if one["id"] != was["id"]] == ["ready"],
        60,
        "the successor",
    )
    assert old.post("/v1/completions", body())[0] == 200
    said = [entry["text"] for entry in old.status()["journal"] if entry["fault"]]
    assert any("cannot be written" in text and "serving goes on" in text for text in said), said
    runs.kill()
    new = runs.start()
    new.wait_ready()
    assert new.post("/v1/completions", body())[0] == 200
    new.wait(lambda: workers_of(runs) <= pids(new.status()), 30, "the end of what nobody knows")
    assert new.stop() == 0
    runs.wait_gone()


def workers_of(runs: Runs) -> set[int]:
    return {pid for pid, line in runs.processes().items() if "coral.core.serve.worker --" in line}


def test_weights_of_a_real_engine_stay_loaded(config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the torch engine needs torch")
    del config["models"][0]["shape"]
    config["models"][0]["max_model_len"] = 512
    config["engine"] = {"use": "torch", "step_tokens": 256}
    config["clouds"][0]["machines"] = [{"name": "one", "memory": "3GiB", "price": 1, "count": 1}]
    with running(config, tmp_path) as runs:
        old = runs.start()
        old.wait_ready(180)
        expected = old.post("/v1/completions", body(ignore_eos=True))[1]["choices"]
        wait_until(lambda: all_free(old), 20)
        before = old.status()
        streams = [Stream(old, body(max_tokens=480, ignore_eos=True)) for _ in range(3)]
        wait_until(lambda: all(one.text.count(b"data:") > 2 for one in streams), 30)
        runs.kill()
        wait_until(lambda: all(one.ended for one in streams), 20, "the end of all streams")
        new = runs.start()
        new.wait(lambda: new.get("/ready")[0] == 200, 90, "readiness")
        code, answer = new.post("/v1/completions", body(ignore_eos=True))
        assert (code, answer["choices"]) == (200, expected)
        new.wait(lambda: all_free(new), 20, "freeing of what the lost requests held")
        new.wait(lambda: pids(new.status()) == pids(before), 20, "the same processes")
        assert loads(new.status()) == loads(before)
        assert all(read > 0 for _, read in loads(before).values()), "it had read weights"
        assert new.stop() == 0
        runs.wait_gone()


def test_processes_that_died_in_between_are_noticed_and_followed(runs: Runs) -> None:
    old = runs.start()
    old.wait_ready()
    before = old.status()
    [was] = before["instances"]
    runs.kill()
    os.kill(was["stages"][0]["nodes"][0]["pid"], signal.SIGKILL)
    new = runs.start()
    new.wait_ready()
    assert new.post("/v1/completions", body())[0] == 200
    [now] = [one for one in new.status()["instances"] if one["state"] == "ready"]
    assert now["id"] != was["id"]
    assert new.stop() == 0
    runs.wait_gone()


def test_a_second_coordinator_on_the_folder_is_refused(runs: Runs) -> None:
    old = runs.start()
    old.wait_ready()
    new = runs.start()
    assert new.process.wait(60) == 2
    assert f"another coordinator, pid {old.process.pid}, runs on" in new.log()
    assert old.post("/v1/completions", body())[0] == 200
    assert old.stop() == 0
    runs.wait_gone()


def test_without_a_coordinator_everything_ends_within_the_grace_time(runs: Runs) -> None:
    runs.config["serve"]["grace"] = "3s"
    runs.start().wait_ready()
    runs.kill()
    runs.wait_gone(15.0)
    with coral_serve(runs.config, runs.systems[0].log_path.parent) as new:
        new.wait_ready()
        assert "is gone, and is forgotten" in new.log()
        assert new.stop() == 0
