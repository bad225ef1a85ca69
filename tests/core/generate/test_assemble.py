"""From a config to models and library, with the plugins that are installed; and through `coral templates`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from coral.cli.main import main
from coral.core.config import LoadedConfig, open_config
from coral.core.generate.assemble import prepare
from coral.core.generate.library import open_library
from coral.core.generate.node_types import LOOPBACK, check_distinct, node_types, worst_hop
from coral.core.profile.catalogue import machine_type
from coral.errors import InfeasibleError, UsageError
from coral.hookspecs.engine import EngineCapabilities
from coral.types.hardware import Domain, Gpu, MachineType, NodeType, Offer
from coral.types.model import ModelShape

pytest.importorskip("coral_engine_mock", reason="coral-engine-mock is not installed")
pytest.importorskip("coral_cloud_local", reason="coral-cloud-local is not installed")

SHAPE = (
    "{architecture: LlamaForCausalLM, layers: 30, hidden: 576, heads: 9, kv_heads: 3, head_dim: 64, "
    "intermediate: 1536, vocab: 49152, max_positions: 8192, tied_embeddings: true, "
    "weight_dtype: float32, kv_dtype: float32, activation_dtype: float32}"
)
COST = "{overhead_s: 3e-4, layer_s: 4e-4, token_s: 1e-4, attend_s: 1e-7, head_s: 2e-3, logit_row_s: 1.5e-3}"
CONFIG = f"""
models:
  - name: smol
    source: ./none
    dtype: float32
    shape: {SHAPE}
    slo: {{prefill: 4s, decode: 500ms}}
    demand: {{requests_per_s: 0.5, input_tokens: 60, output_tokens: 40, input_tokens_quantile: 120}}
generate: {{max_nodes: 3}}
engine: {{use: mock, cost: {COST}}}
clouds:
  - use: local
    machines:
      - {{name: tiny, memory: 350MB, price: 0.2, count: 1}}
      - {{name: big, memory: 450MB, price: 0.3, count: 2}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "coral.yaml"
    path.write_text(f"{CONFIG}\nstate: {{folder: {tmp_path / 'state'}}}\n")
    return path


def local(name: str, memory: int) -> tuple[Offer, Gpu]:
    kind = MachineType(name=name, gpu=f"local-{name}", gpus=1)
    offer = Offer(machine_type=kind, domain=Domain("local", "host"), price_usd_h=0.2, obtainable=2)
    gpu = Gpu(name=kind.gpu, kind="cpu", memory_bytes=memory, memory_bytes_per_s=0.0, flops={})
    return offer, gpu


def offered(name: str) -> Offer:
    kind = machine_type(name)
    return Offer(machine_type=kind, domain=Domain("aws", "us-east-2"), price_usd_h=1.0, obtainable=1)


def test_node_types_with_and_without_slices() -> None:
    offers = [offered("g6e.12xlarge"), offered("g6e.xlarge"), offered("p5.48xlarge")]
    sliced = [str(kind) for kind in node_types(offers, slices=True)]
    assert sliced == ["H100 x1", "H100 x2", "H100 x4", "H100 x8", "L40S x1", "L40S x2", "L40S x4"]
    whole = node_types(offers, slices=False)
    assert whole == (NodeType("H100", 8), NodeType("L40S", 1), NodeType("L40S", 4))


def test_two_clouds_may_give_unlike_machines_one_name() -> None:
    ours, theirs = offered("g6e.xlarge"), offered("p5.48xlarge")
    renamed = replace(theirs.machine_type, name=ours.machine_type.name)
    theirs = replace(theirs, machine_type=renamed, domain=Domain("other", "here"))
    assert node_types([ours, theirs], slices=False) == (NodeType("H100", 8), NodeType("L40S", 1))


def test_two_offers_that_cannot_be_told_apart_are_refused() -> None:
    one = offered("g6e.xlarge")
    check_distinct([one, replace(one, market="spot"), replace(one, domain=Domain("aws", "eu-west-1"))])
    with pytest.raises(UsageError, match=r"offered twice: aws/us-east-2:g6e\.xlarge:on_demand"):
        check_distinct([one, replace(one, price_usd_h=2.0)])


def test_the_hop_is_the_worst_network_on_offer() -> None:
    hop = worst_hop([offered("g6e.12xlarge"), offered("g6e.xlarge")])
    assert hop.bytes_per_s == 2.5e9 / 8
    assert hop.latency_s == machine_type("g6e.xlarge").nic_latency_s
    assert worst_hop([local("tiny", 1)[0]]) == LOOPBACK


def prepared(session: LoadedConfig, *rows: tuple[str, int]) -> Path:
    pairs = [local(*row) for row in rows]
    models, library = prepare(
        session.config, session.registry, [offer for offer, _ in pairs], {gpu.name: gpu for _, gpu in pairs}
    )
    assert [model.name for model in models] == ["smol"]
    assert models[0].shape.weight_dtype == "float32"
    return library.folder


def test_another_process_opens_what_was_prepared(path: Path) -> None:
    session = open_config(path, ())
    folder = prepared(session, ("tiny", 350_000_000), ("big", 450_000_000))
    library = open_library(folder)
    table = library.table("smol", "mixed")
    # 30 layers and a tied embedding of 538 MB in all: no one of these devices holds the model alone.
    assert (table.usage.sum(axis=1) >= 2).all()
    best = library.template("smol", "mixed", int(table.throughput.argmax()))
    assert len(best.placement.stages) >= 2


def test_more_memory_changes_the_library_and_not_the_measurement(path: Path) -> None:
    session = open_config(path, ())
    small = prepared(session, ("tiny", 350_000_000))
    large = prepared(session, ("tiny", 900_000_000))
    assert small != large
    usage = open_library(large).table("smol", "mixed").usage
    assert usage.sum(axis=1).min() == 1
    state = Path(session.config.state.folder)
    assert len(list((state / "measurements").iterdir())) == 1


def test_nothing_on_offer_and_nobody_who_can(path: Path) -> None:
    session = open_config(path, ())
    with pytest.raises(InfeasibleError, match="no cloud offers a machine"):
        prepare(session.config, session.registry, [], {})


def test_templates_build_and_show(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["templates", "build", "-c", str(path), "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    (entry,) = built["entries"]
    assert entry["templates"] >= entry["irreducible"] > 0

    assert main(["templates", "show", "smol", "-c", str(path), "--top", "4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["mixed"]
    assert 1 < len(shown) <= 4
    values = [one["per_usd"] for one in shown]
    assert values == sorted(values, reverse=True)
    for one in shown:
        nodes = sum(len(stage["nodes"]) for stage in one["template"]["placement"]["stages"])
        assert one["price_usd_h"] == pytest.approx(one["template"]["throughput"] / one["per_usd"])
        assert 0.2 * nodes - 1e-9 <= one["price_usd_h"] <= 0.3 * nodes + 1e-9

    assert main(["templates", "show", "smol", "-c", str(path), "--top", "1"]) == 0
    picture = capsys.readouterr().out
    assert "[0," in picture
    assert ",30) local-" in picture

    assert main(["templates", "show", "smoll", "-c", str(path)]) == 2
    assert "no model 'smoll'" in capsys.readouterr().err


def test_templates_are_plotted(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    out = tmp_path / "smol.png"
    assert main(["templates", "plot", "smol", "-c", str(path), "--out", str(out), "--json"]) == 0
    front = json.loads(capsys.readouterr().out)["pareto"]["mixed"]
    assert out.read_bytes().startswith(b"\x89PNG")
    assert front
    assert [one["usd_h"] for one in front] == sorted(one["usd_h"] for one in front)
    assert main(["templates", "plot", "smol", "-c", str(path), "--out", "smol.gif"]) == 2
    assert "smol.gif" in capsys.readouterr().err


def test_a_model_that_nothing_can_serve_exits_3_with_the_reason(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["templates", "show", "smol", "-c", str(path)]
    assert main([*command, "--set", "models.0.slo.decode=1us", "--json"]) == 3
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"mixed": []}
    assert "no combination of nodes on offer can serve 'smol'" in shown.err
    assert "mixed: no node holds a single layer (local-" in shown.err
    assert main([*command, "--set", "generate.max_nodes=1"]) == 3
    assert "mixed: 30 layers do not fit the SLO, 1 node and 12 times" in capsys.readouterr().err


def test_an_engine_that_refuses_everywhere_is_named_with_its_reasons(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coral_engine_mock.engine import MockEngine

    able = MockEngine.capabilities

    def refuses(engine: MockEngine, shape: ModelShape, gpu: Gpu) -> EngineCapabilities:
        return msgspec.structs.replace(able(engine, shape, gpu), refusal="it is Sunday")

    monkeypatch.setattr(MockEngine, "capabilities", refuses)
    session = open_config(path, ())
    offer, gpu = local("tiny", 350_000_000)
    with pytest.raises(InfeasibleError, match=r"on no GPU on offer .*local-tiny: it is Sunday"):
        prepare(session.config, session.registry, [offer], {gpu.name: gpu})
