"""The benchmark of step costs against public measurements."""

from __future__ import annotations

import json

import msgspec
import pytest

from benchmarks import measured, tables
from benchmarks.data import DataMissing
from benchmarks.measured import Sample
from coral.core.profile import catalogue
from coral.core.profile.calibration import CLASSES
from coral.errors import ProfileError
from coral.hookspecs.profiler import StepCost
from coral.types.model import ModelShape
from coral.types.step import AffineStepCost, StepWork

SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    intermediate=2048,
    vocab=1000,
    max_positions=4096,
)
COST = AffineStepCost(
    gpu="H100",
    engine="vllm",
    engine_version="1",
    provenance="measured",
    error=0.1,
    overhead_s=1.0,
    layer_s=0.5,
    token_s=0.25,
    attend_s=0.0,
)


def sample(seconds: float, **changes: object) -> Sample:
    one = Sample(
        source="e2e",
        gpu="H100",
        phase="tpot",
        model="m",
        shape=SHAPE,
        engine="vllm",
        tp=1,
        seconds=seconds,
        steps=((StepWork(decode_rows=2), 1.0),),
    )
    return msgspec.structs.replace(one, **changes)


@pytest.fixture(scope="module")
def public() -> list[Sample]:
    try:
        return list(measured.samples())
    except DataMissing as missing:
        pytest.skip(str(missing))


def test_a_prediction_is_the_sum_of_its_steps() -> None:
    assert sample(1.0).predicted_s(COST) == 1 + 4 * (0.5 + 0.5)
    two = ((StepWork(decode_rows=2), 1.0), (StepWork(prefill_tokens=4), 0.5))
    assert sample(1.0, steps=two).predicted_s(COST) == 5 + 0.5 * (1 + 4 * 1.5)
    assert sample(1.0, layer=True).predicted_s(COST) == 1.0
    assert sample(1.0, beside_s=0.5).predicted_s(COST) == 5.5
    assert sample(1.0, floor_s=7.0).predicted_s(COST) == 7.0


def test_errors_are_medians_by_source_gpu_and_phase() -> None:
    def cost(one: Sample) -> StepCost:
        if one.gpu == "T4":
            raise ProfileError("no tables of T4")
        return COST

    lines = tables.results(
        "x",
        cost,
        [
            sample(5.0, fitted=True),
            sample(4.0),
            sample(10.0),
            sample(5.0, phase="token_eager", source="splitwise"),
            sample(1.0, gpu="T4"),
        ],
    )
    one = next(line for line in lines if line.source == "e2e" and line.gpu == "H100")
    assert (one.samples, one.median_error, one.bias, one.held_out) == (3, 0.25, 1.0, 0.375)
    whole = next(line for line in lines if line.source == "class" and line.gpu == "hopper")
    assert whole.samples == 3
    lost = next(line for line in lines if line.gpu == "T4")
    assert (lost.samples, lost.refused, lost.median_error) == (0, 1, None)
    assert lost.reason == "no tables of T4"


def test_every_public_row_is_read_as_its_readme_says(public: list[Sample]) -> None:
    assert {(one.source, one.gpu) for one in public} == {
        ("e2e", "B200"),
        ("e2e", "H100"),
        ("e2e", "H200"),
        ("helix", "A100-40GB"),
        ("helix", "L4"),
        ("helix", "T4"),
        ("helix", "V100"),
        ("splitwise", "A100-80GB"),
        ("splitwise", "H100"),
    }
    assert all(one.seconds > 0 and one.tp in (1, 2, 4, 8) for one in public)
    assert all(one.steps[0][0].decode_rows < 512 for one in public if one.source == "e2e")
    assert {one.shape.weight_dtype for one in public if one.model == "gpt-oss-120b"} == {"mxfp4"}
    helix = [one for one in public if one.source == "helix"]
    assert len(helix) == 1249 - 28  # a batch of 0 in each of 28 series


def test_the_analytic_profiler_states_the_error_that_is_measured(public: list[Sample]) -> None:
    cost = tables.costs("analytic")
    assert cost is not None
    lines = {line.gpu: line for line in tables.results("analytic", cost, public) if line.source == "class"}
    assert set(lines) == {"a100", "blackwell", "efficient", "hopper", "volta"}
    for name, line in lines.items():
        assert line.held_out == pytest.approx(CLASSES[name].error, abs=0.015)


def test_lines_are_json(
    public: list[Sample], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "samples", lambda: iter(public[:40]))
    monkeypatch.setattr(tables, "PROFILERS", ("analytic", "nobody"))
    assert tables.main(["--json"]) == 0
    told = capsys.readouterr()
    assert "profiler 'nobody' is not installed" in told.err
    for line in told.out.splitlines():
        found = json.loads(line)
        assert found["samples"] > 0
        assert found["gpu"] in {*catalogue.gpus(), *CLASSES}
