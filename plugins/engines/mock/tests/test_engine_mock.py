from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
from coral_engine_mock.engine import build
from coral_engine_mock.options import MockCost, MockOptions
from coral_engine_mock.runner import MockRunner, load
from coral_engine_mock.settings import MockSettings

from coral.errors import EngineError
from coral.hookspecs.engine import Engine
from coral.testing.engine import EngineContract
from coral.testing.engine_kv import asked
from coral.testing.generation import Load
from coral.testing.instance import stages
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.stage import Chunk, HiddenRows, StageSpec
from coral.types.step import Measurements, StepWork

SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=128,
    vocab=256,
    max_positions=512,
)
GPU = Gpu(name="cpu", kind="cpu", memory_bytes=1 << 30, memory_bytes_per_s=1e10, flops={})


def spec(stage: int = 0, cuts: tuple[int, ...] = (4,), **options: object) -> StageSpec:
    placement = stages(
        cuts=cuts,
        nodes=[1] * len(cuts),
        engine="mock",
        options={"kv_blocks": 64, **options},
        max_model_len=128,
    )
    return placement[stage][0][0]


class TestContract(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return build(MockOptions())

    @pytest.fixture
    def stage(self) -> StageSpec:
        return spec()

    @pytest.fixture
    def load(self) -> Load:
        return load


def rows_of(sender: MockRunner, chunk: Chunk) -> HiddenRows:
    hidden = sender.step([chunk]).hidden
    assert hidden is not None
    return hidden


def two_stages() -> tuple[MockRunner, MockRunner]:
    first, last = load(spec(0, (1, 4))), load(spec(1, (1, 4)))
    for runner in (first, last):
        runner.open(asked("a"), 40)
        runner.open(asked("b"), 40)
    return first, last


def prompt(name: str) -> Chunk:
    ids = asked(name).prompt_ids
    return Chunk(request=name, start=0, n=len(ids), token_ids=ids)


@pytest.mark.parametrize("wrong", ["changed", "of another request", "short"])
def test_the_last_stage_refuses_rows_that_were_not_sent(wrong: str) -> None:
    first, last = two_stages()
    rows = rows_of(first, prompt("b" if wrong == "of another request" else "a"))
    data = bytearray(rows.data)
    if wrong == "changed":
        data[5] ^= 1
    n = rows.shape[0] - (1 if wrong == "short" else 0)
    rows = HiddenRows(dtype="float32", shape=(n, rows.shape[1]), data=bytes(data)[: n * rows.shape[1] * 4])
    with pytest.raises(EngineError, match="are not what was sent"):
        last.step([Chunk(request="a", start=0, n=len(asked("a").prompt_ids), rows=rows)])


def test_the_last_stage_takes_rows_that_were_sent() -> None:
    first, last = two_stages()
    chunk = prompt("a")
    result = last.step([Chunk(request="a", start=0, n=chunk.n, rows=rows_of(first, chunk))])
    assert len(result.sampled) == 1


def test_a_step_takes_as_long_as_it_costs() -> None:
    runner = load(spec(cost={"overhead_s": 0.02, "layer_s": 0.005}))
    runner.open(asked("a"), 40)
    runner.step([prompt("a")])
    assert 0.04 <= runner.stats().step_seconds < 0.4


def test_tokens_may_follow_a_pattern() -> None:
    runner = load(spec(tokens=[7, 8, 9]))
    runner.open(asked("a"), 40)
    assert runner.step([prompt("a")]).sampled[0].token == 7
    at = len(asked("a").prompt_ids)
    assert runner.step([Chunk(request="a", start=at, n=1, token_ids=(7,))]).sampled[0].token == 8


def test_faults_are_for_the_node_they_name() -> None:
    load(spec(fail_at_load="no memory", fail_node="other"))
    with pytest.raises(EngineError, match="no memory"):
        load(spec(fail_at_load="no memory", fail_node="s0n0"))
    runner = load(spec(fail_at_step=1))
    runner.open(asked("a"), 40)
    with pytest.raises(EngineError, match="step 1 fails"):
        runner.step([prompt("a")])


def test_unknown_options_are_refused_by_both_halves() -> None:
    with pytest.raises(EngineError, match="blocks"):
        load(spec(blocks=3))
    plain = MockOptions(kv_blocks=3, load=0.5, cost=MockCost(layer_s=0.1)).model_dump(mode="json")
    settings = MockSettings.of(plain)
    assert (settings.kv_blocks, settings.load, settings.cost.layer_s) == (3, 0.5, 0.1)


def test_the_halves_know_the_same_options() -> None:
    assert set(MockSettings.__struct_fields__) == set(MockOptions.model_fields)


def test_what_it_measures_is_what_it_costs() -> None:
    launch = build(MockOptions(cost=MockCost(overhead_s=0.5, token_s=0.25))).measure(SHAPE, GPU, "float32")
    assert launch is not None
    out = subprocess.run(launch.argv, check=True, capture_output=True, timeout=60).stdout
    found = msgspec.json.decode(out, type=Measurements)
    cost = MockSettings.of({"cost": {"overhead_s": 0.5, "token_s": 0.25}}).cost.step_cost("cpu")
    for point in found.points:
        assert point.seconds == cost.step_s(point.work, point.layers, first=point.first, last=point.last)
    assert {point.work for point in found.points} >= {
        StepWork(decode_rows=1, decode_context=64, logit_rows=1)
    }


def test_the_workers_half_needs_no_pydantic() -> None:
    code = (
        "import sys, coral_engine_mock, coral_engine_mock.runner, coral.core.serve.worker.process;"
        "import json; print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
    loaded = {name.partition(".")[0] for name in json.loads(out)}
    assert not loaded & {"pydantic", "torch", "yaml", "scipy", "starlette", "typer"}
