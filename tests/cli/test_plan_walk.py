"""What someone meets who asks `coral plan` for what cannot be, or feeds it what is broken: a message that
names the thing, the place and the next step, the exit code that belongs to it, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

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
solver: {use: highs, time_limit: 10s}
state: {folder: ./state}
clouds:
  - use: static
    name: here
    offers:
      - {type: one, gpu: L4, gpus: 1, region: r, price: 0.8, obtainable: 4, nic: 10Gbit/s}
      - {type: big, gpu: L40S, gpus: 4, region: r, price: 7.5, obtainable: 1, nic: 10Gbit/s}
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


class Walk:
    """A folder with a config, in which `coral plan` is asked."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        (folder / "coral.yaml").write_text(CONFIG)

    def __call__(self, *sets: str, json: bool = False, more: tuple[str, ...] = ()) -> Result:
        arguments = ["plan", "-c", str(self.folder / "coral.yaml"), *more, *(["--json"] if json else [])]
        for text in sets:
            arguments += ["--set", text]
        code = main(arguments)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        self.whole()
        return Result(code, out, err)

    @property
    def libraries(self) -> Path:
        return self.folder / "state" / "libraries"

    def files(self) -> set[str]:
        return {str(path.relative_to(self.libraries)) for path in self.libraries.rglob("*") if path.is_file()}

    def whole(self) -> None:
        """No temporary file is left, and every manifest is JSON whose files are there."""
        for path in self.libraries.rglob("*") if self.libraries.is_dir() else ():
            assert not path.name.startswith("."), path
            if path.name == "manifest.json":
                json.loads(path.read_text())


@pytest.fixture
def walk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Walk:
    return Walk(tmp_path, capsys)


def test_an_impossible_demand(walk: Walk) -> None:
    found = walk("models.0.demand.requests_per_s=9000", json=True)
    assert found.code == 3
    plan = found.plan
    assert 0 < plan["services"][0]["fraction"] < 1
    assert {m["machine_type"]: m["new"] for m in plan["machines"]} == {"big": 1, "one": 4}
    supply = [one for one in plan["mends"] if one["kind"] == "supply"]
    assert supply
    mended = walk(
        "models.0.demand.requests_per_s=9000",
        json=True,
        more=tuple(part for change in supply[0]["what_if"] for part in ("--what-if", change)),
    )
    assert mended.code == 0
    assert mended.plan["certificate"]["cost_usd_h"] == pytest.approx(supply[0]["cost_usd_h"])


def test_the_mend_is_a_command(walk: Walk) -> None:
    found = walk("models.0.demand.requests_per_s=9000")
    assert found.code == 3
    assert "any one of these would mend it" in found.out
    assert '--what-if \'offers."here/r:big:on_demand".obtainable=' in found.out
    assert '--what-if \'models."tiny".demand=' in found.out


def test_a_vast_demand(walk: Walk) -> None:
    found = walk("models.0.demand.requests_per_s=1e15", json=True)
    assert found.code == 3
    assert "of 1e+15 requests/s can be served" in found.plan["notes"][0]


def test_no_demand(walk: Walk) -> None:
    found = walk("models.0.demand.requests_per_s=0", json=True, more=("--explain",))
    assert found.code == 0
    assert (found.plan["machines"], found.plan["instances"], found.plan["price_usd_h"]) == ([], [], 0.0)


@pytest.mark.parametrize("demand", ["-1", ".nan", ".inf", "lots"])
def test_a_demand_that_is_none(walk: Walk, demand: str) -> None:
    found = walk(f"models.0.demand.requests_per_s={demand}")
    assert found.code == 2
    assert "models[0].demand.requests_per_s: must be" in found.err
    assert not walk.libraries.exists()


def test_a_model_too_large_for_every_node(walk: Walk) -> None:
    found = walk("models.0.shape.layers=400", "models.0.shape.hidden=16384", json=True)
    assert found.code == 3
    plan = found.plan
    assert plan["machines"] == []
    (line,) = [note for note in plan["notes"] if "too large" in note]
    assert "its weights take" in line
    assert "the 2 nodes that one may have hold" in line
    assert "(L40S x4)" in line
    assert [one["kind"] for one in plan["mends"]] == ["demand"]


def test_an_unknown_gpu(walk: Walk) -> None:
    found = walk("clouds.0.offers.0.gpu=L4O")
    assert found.code == 1
    assert "no GPU is named 'L4O'" in found.err
    assert "did you mean L4" in found.err
    assert not walk.libraries.exists()


@pytest.mark.parametrize(("price", "says"), [("-1", "greater than or equal to 0"), (".nan", "finite number")])
def test_a_price_that_is_none(walk: Walk, price: str, says: str) -> None:
    found = walk(f"clouds.0.offers.0.price={price}")
    assert found.code == 2
    assert "clouds[0].offers[0].price: must be" in found.err
    assert says in found.err


def test_no_offers(walk: Walk) -> None:
    found = walk("clouds.0.offers=[]")
    assert found.code == 2
    assert "clouds[0]: give offers, or a file that has them" in found.err
    (walk.folder / "none.csv").write_text("type,gpu,gpus,region,price,obtainable\n")
    config = (walk.folder / "coral.yaml").read_text()
    head = config.split("    offers:")[0]
    (walk.folder / "coral.yaml").write_text(head + "    file: ./none.csv\n")
    found = walk()
    assert found.code == 3
    assert "no cloud offers a machine" in found.err
    assert "check `clouds` in the config" in found.err


def test_an_slo_that_nothing_meets(walk: Walk) -> None:
    found = walk("models.0.slo.decode=1e-9", json=True)
    assert found.code == 3
    assert "no node on offer can hold a layer of it and meet its SLO" in found.plan["notes"][0]
    (mend,) = [one for one in found.plan["mends"] if one["kind"] == "slo"]
    assert mend["about"].startswith("decode of tiny in ")
    mended = walk("models.0.slo.decode=1e-9", json=True, more=("--what-if", mend["what_if"][0]))
    assert mended.code == 0


PROFILE = "model,gpu,phase,batch_tokens,latency_ms_per_layer\n"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("m,L4,decode,8,nan", "row 3: latency_ms_per_layer must be a number from 0, found 'nan'"),
        ("m,L4,decode,8,-0.5", "row 3: latency_ms_per_layer must be a number from 0, found '-0.5'"),
        ("m,L4,decode,8,inf", "row 3: latency_ms_per_layer must be a number from 0, found 'inf'"),
        ("m,L4,decode,-8,1", "row 3: batch_tokens must be a number from 0, found '-8'"),
        ("m,L4,decoding,8,1", "row 3: phase must be prompt, prefill or decode"),
    ],
)
def test_a_profile_with_what_is_no_time(walk: Walk, row: str, says: str) -> None:
    file = walk.folder / "times.csv"
    file.write_text(PROFILE + "m,L4,prompt,512,0.9\n" + row + "\n")
    found = walk(
        "profiler.use=measured",
        f"profiler.files=[{file}]",
        "profiler.models={m: {layers: 8, hidden: 2048}}",
        "profiler.otherwise=null",
    )
    assert found.code in (1, 2)
    assert str(file) in found.err
    assert says in found.err
    assert walk.files() == set() if walk.libraries.exists() else True


def test_a_library_folder_that_is_a_file(walk: Walk) -> None:
    (walk.folder / "file").write_text("")
    found = walk("state.folder=./file")
    assert found.code == 1
    assert f"cannot write {walk.folder / 'file'}" in found.err
    assert "check `state.folder` in the config" in found.err
    assert found.out == ""


def test_a_library_folder_that_may_not_be_written(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights do not hold for root, so that the refusal is the system call's."""

    def refused(**_: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("coral.core.profile.files.tempfile.mkstemp", refused)
    found = walk()
    assert found.code == 1
    assert "Permission denied" in found.err
    assert "its rights" in found.err
    assert walk.files() == set()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_library_is_read(walk: Walk) -> None:
    before = walk(json=True)
    for path in (walk.libraries, *walk.libraries.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    found = walk(json=True)
    assert found.code in (0, 1)
    assert found.code == 1 or found.plan["machines"] == before.plan["machines"]
    for path in (walk.libraries, *walk.libraries.rglob("*")):
        path.chmod(0o700)


@pytest.mark.parametrize("damage", ["manifest", "rows", "entry", "gone", "left over"])
def test_a_half_written_library_is_made_whole(walk: Walk, damage: str) -> None:
    before = walk(json=True).plan
    names = walk.files()
    store = walk.libraries / "store"
    if damage == "manifest":
        for path in walk.libraries.rglob("manifest.json"):
            path.write_bytes(path.read_bytes()[:20])
    elif damage == "rows":
        for path in store.glob("*.parquet"):
            path.write_bytes(path.read_bytes()[:-7])
    elif damage == "entry":
        for path in store.glob("*.json"):
            path.write_text("{")
    elif damage == "gone":
        shutil.rmtree(store)
    else:
        for path in store.glob("*.parquet"):
            (path.parent / f"{path.stem}.parquet.half").write_bytes(path.read_bytes()[:100])
    found = walk(json=True)
    assert found.code == 0
    assert found.plan["machines"] == before["machines"]
    assert found.plan["instances"] == before["instances"]
    assert names <= walk.files()


@pytest.mark.parametrize("how", ["abort", "hang", "segfault", "refuse"])
def test_a_solver_that_dies_hangs_or_refuses(walk: Walk, how: str) -> None:
    """The plan is then made without one, and says so."""
    found = walk(
        f"plugins.paths=[{ROOT / 'tests/core/solve/misbehaving.py'}]",
        "solver.use=misbehaving",
        f"solver.how={how}",
        "solver.time_limit=1s",
        json=True,
    )
    assert found.code == 0
    plan = found.plan
    assert plan["satisfied"]
    assert plan["certificate"] is None
    assert any("solver" in note for note in plan["notes"])
    assert any(m["new"] for m in plan["machines"])


def test_an_explanation_without_a_solver_claims_nothing(walk: Walk) -> None:
    found = walk(
        f"plugins.paths=[{ROOT / 'tests/core/solve/misbehaving.py'}]",
        "solver.use=misbehaving",
        "solver.how=refuse",
        "solver.time_limit=2s",
        json=True,
        more=("--explain",),
    )
    assert found.code == 0
    answers = found.plan["explanation"]["answers"]
    assert answers
    assert not any(one["figure"]["told_apart"] for one in answers if one["figure"]["usd_h"] is not None)
    assert found.plan["explanation"]["estimated"] == {"offers": {}, "demand": {}}


HELD = '''
"""A cloud whose offers and machines lie in a file beside the config."""

import json
from pathlib import Path

import msgspec

from coral.errors import CloudError
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import LocalPath, Options
from coral.types.hardware import Machine, Offer


class FileOptions(Options):
    file: LocalPath


class FileCloud:
    def __init__(self, options):
        self._found = json.loads(options.file.read_text())

    async def offers(self):
        return msgspec.convert(self._found["offers"], list[Offer])

    async def machines(self):
        return msgspec.convert(self._found["machines"], list[Machine])

    async def rent(self, order):
        raise CloudError("nothing can be rented here")

    async def release(self, machines):
        raise CloudError("nothing can be given back here")

    async def notices(self):
        return []

    def gpus(self):
        return []


@hookimpl
def coral_clouds():
    return [Component(name="file", summary="for tests", options=FileOptions, build=FileCloud)]
'''


def market(*, one: int, big: int, held: int) -> dict[str, Any]:
    """Offers `one` (L4) and `big` (4× L40S), and machines of `one` that are held."""
    domain = {"cloud": "file", "region": "r"}
    types = {
        "one": {"name": "one", "gpu": "L4", "gpus": 1, "nic_bytes_per_s": 1.25e9},
        "big": {"name": "big", "gpu": "L40S", "gpus": 4, "nic_bytes_per_s": 1.25e9},
    }
    return {
        "offers": [
            {"machine_type": types["one"], "domain": domain, "price_usd_h": 0.8, "obtainable": one},
            {"machine_type": types["big"], "domain": domain, "price_usd_h": 7.5, "obtainable": big},
        ],
        "machines": [
            {"id": f"m{i}", "machine_type": types["one"], "domain": domain, "price_usd_h": 0.8}
            for i in range(held)
        ],
    }


@pytest.fixture
def file_cloud(walk: Walk) -> Walk:
    (walk.folder / "file_cloud.py").write_text(HELD)
    config = (walk.folder / "coral.yaml").read_text().split("clouds:")[0]
    (walk.folder / "coral.yaml").write_text(
        config + "plugins: {paths: [./file_cloud.py]}\nclouds: [{use: file, file: ./market.json}]\n"
    )
    return walk


def offered(walk: Walk, **counts: int) -> None:
    (walk.folder / "market.json").write_text(json.dumps(market(**counts)))


def test_nothing_obtainable_tears_down_nothing_that_is_held(file_cloud: Walk) -> None:
    demand = "models.0.demand.requests_per_s=200"
    offered(file_cloud, one=4, big=1, held=0)
    first = file_cloud(demand, json=True)
    (machines,) = first.plan["machines"]
    assert first.code == 0
    count = machines["new"]
    assert machines["machine_type"] == "one"
    assert count >= 2
    offered(file_cloud, one=0, big=0, held=count)
    second = file_cloud(demand, json=True)
    assert second.code == 0
    assert [(m["machine_type"], m["kept"], m["new"]) for m in second.plan["machines"]] == [("one", count, 0)]
    assert second.plan["satisfied"]
    explained = file_cloud(demand, json=True, more=("--explain",)).plan["explanation"]
    held = [one for one in explained["answers"] if one["kind"] == "machine"]
    assert [one["about"] for one in held] == ["one held one (on_demand) less in file/r"]
    assert held[0]["figure"]["usd_h"] is None  # without it not all can be served
    assert held[0]["figure"]["served"][0]["after"] < 1
    more = file_cloud("models.0.demand.requests_per_s=9000", json=True)
    assert more.code == 3
    assert [(m["machine_type"], m["kept"], m["new"]) for m in more.plan["machines"]] == [("one", count, 0)]


def test_an_offer_that_is_gone_is_replaced_at_once(file_cloud: Walk) -> None:
    demand = "models.0.demand.requests_per_s=200"
    offered(file_cloud, one=1, big=1, held=1)
    kept = file_cloud(demand, json=True)
    offered(file_cloud, one=0, big=1, held=1)
    found = file_cloud(demand, json=True)
    assert (kept.code, found.code) == (0, 0)
    assert [m["machine_type"] for m in kept.plan["machines"]] == ["one"]
    assert "big" in [m["machine_type"] for m in found.plan["machines"]]
    assert found.plan["satisfied"]
