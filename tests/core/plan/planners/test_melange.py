from __future__ import annotations

import json
from itertools import product
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.data import DataMissing, data_file
from coral.core.plan.planners.buckets import MeasuredRates, Replica, library_rates
from coral.core.plan.planners.melange import MelangePlanner, build
from coral.core.plan.planners.melange_options import MelangeOptions
from coral.errors import UsageError
from coral.hookspecs.planner import Planner
from coral.hookspecs.solver import Solver
from coral.testing.planner import PlannerContract
from coral.testing.tables import TableLibrary, offer, spec, view
from coral.types.hardware import NodeType
from coral.types.model import ModelSpec, Phase, RequestClass


class TestContract(PlannerContract):
    @pytest.fixture
    def planner(self) -> Planner:
        return build(MelangeOptions(slice_factor=1000))

    @pytest.fixture
    def solver(self, highs: Solver) -> Solver:
        return highs


def with_classes(model: ModelSpec, *classes: RequestClass) -> ModelSpec:
    return replace(model, demand=replace(model.demand, classes=classes))


def buckets(shares: list[float]) -> list[RequestClass]:
    return [
        RequestClass(input_tokens=100.0 * (i + 1), output_tokens=50.0, share=share)
        for i, share in enumerate(shares)
    ]


def test_the_published_example(highs: Solver, tmp_path: Path) -> None:
    """3 A10G and 1 A100-80GB for 6.70 USD/h: `config/example.json` of Mélange's release."""
    try:
        example = json.loads(data_file("melange_example/example.json").read_text())
    except DataMissing as missing:
        pytest.skip(str(missing))
    shares = [share for row in example["workload_distribution"] for share in row]
    rates = {
        gpu: [rate for row in facts["tputs"] for rate in row] for gpu, facts in example["gpu_info"].items()
    }
    model = with_classes(spec("m", example["total_request_rate"]), *buckets(shares))
    means = {gpu: 1 / sum(s / r for s, r in zip(shares, some, strict=True)) for gpu, some in rates.items()}
    table = tmp_path / "rates.json"
    table.write_text(json.dumps({"m": {f"{gpu} x1": some for gpu, some in rates.items()}}))
    planner = build(MelangeOptions(slice_factor=example["slice_factor"], rates=table))
    offers = [offer(gpu, facts["cost"]) for gpu, facts in example["gpu_info"].items()]
    plan = planner.plan(view([model], offers), TableLibrary({"m": means}), highs)
    assert {one.machine_type: one.new for one in plan.machines} == {"A10G.1": 3, "A100-80GB.1": 1}
    assert plan.price_usd_h == pytest.approx(6.70)
    assert plan.satisfied
    assert plan.certificate is not None
    assert plan.certificate.gap == pytest.approx(0.0, abs=1e-6)


def least(
    demand: float, shares: list[float], factor: int, rates: dict[str, list[float]], prices: dict[str, float]
) -> float:
    """Every assignment of slices to types, tried out."""
    gpus = sorted(rates)
    slices = [(bucket, demand * share / factor) for bucket, share in enumerate(shares) for _ in range(factor)]
    best = inf
    for chosen in product(gpus, repeat=len(slices)):
        load = dict.fromkeys(gpus, 0.0)
        for gpu, (bucket, flow) in zip(chosen, slices, strict=True):
            load[gpu] += flow / rates[gpu][bucket]
        best = min(best, sum(ceil(load[gpu] - 1e-9) * prices[gpu] for gpu in gpus))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_no_assignment_of_slices_is_cheaper(highs: Solver, seed: int) -> None:
    draw = np.random.default_rng(seed)
    factor, demand = int(draw.integers(1, 3)), float(draw.uniform(3, 20))
    shares = draw.dirichlet(np.ones(3)).tolist()
    rates: dict[str, list[float]] = {gpu: draw.uniform(1, 10, 3).tolist() for gpu in ("a", "b")}
    prices = {"a": 1.0, "b": float(draw.uniform(0.5, 2.0))}
    model = with_classes(spec("m", demand), *buckets(shares))

    def given(model: ModelSpec, phase: Phase, replica: Replica) -> list[float]:
        return rates[next(iter(replica.nodes)).gpu]

    # So fast at mean sizes that only the buckets count.
    library = TableLibrary({"m": {"a": 1e3, "b": 1e3}})
    planner = MelangePlanner(MelangeOptions(slice_factor=factor), rates=given)
    plan = planner.plan(view([model], [offer(gpu, prices[gpu]) for gpu in prices]), library, highs)
    assert plan.price_usd_h == pytest.approx(least(demand, shares, factor, rates, prices))


def test_buckets_from_the_tables_serve_the_mean_demand(highs: Solver) -> None:
    model = with_classes(spec("m", 10.0), *buckets([0.5, 0.3, 0.2]))
    library = TableLibrary({"m": {"a": 1.3, "b": 2.9}})
    coarse, fine = (
        build(MelangeOptions(slice_factor=factor)).plan(
            view([model], [offer("a", 1.0), offer("b", 2.0)]), library, highs
        )
        for factor in (1, 64)
    )
    assert coarse.satisfied
    assert fine.satisfied
    assert fine.price_usd_h <= coarse.price_usd_h


def test_sizes_that_no_type_serves_are_said(highs: Solver) -> None:
    model = with_classes(spec("m", 1.0), *buckets([0.5, 0.5]))
    planner = MelangePlanner(MelangeOptions(), rates=lambda model, phase, replica: [1.0, 0.0])
    plan = planner.plan(view([model], [offer("a", 1.0)]), TableLibrary({"m": {"a": 1.0}}), highs)
    assert any("buckets" in note for note in plan.notes)


class TestRates:
    model = with_classes(spec("m", 1.0), *buckets([0.75, 0.25]))
    replica = Replica(nodes={NodeType("a", 1): 1}, throughput=600.0)

    def test_from_the_tables(self) -> None:
        assert library_rates(self.model, "prefill", self.replica) == [6.0, 3.0]
        assert library_rates(self.model, "decode", self.replica) == [12.0, 12.0]
        mixed = library_rates(self.model, "mixed", self.replica)
        assert 1 / (0.75 / mixed[0] + 0.25 / mixed[1]) == pytest.approx(600.0)

    def test_of_a_phase_before_those_of_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "rates.json"
        path.write_text('{"m": {"a x1": [1, 2]}, "m/decode": {"a x1": [3, 4]}}')
        rates = MeasuredRates(path)
        assert rates(self.model, "prefill", self.replica) == [1, 2]
        assert rates(self.model, "decode", self.replica) == [3, 4]
        assert rates(self.model, "decode", Replica(nodes={NodeType("b", 1): 1}, throughput=1.0)) is None
        assert rates(self.model, "decode", Replica(nodes={NodeType("a", 1): 2}, throughput=1.0)) is None

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("[]", "no table of bucket rates"),
            ('{"other": {}}', "no bucket rates of m"),
            ('{"m": {"a x1": [1]}}', "2 size classes"),
        ],
    )
    def test_faults_are_named(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "rates.json"
        path.write_text(text)
        with pytest.raises(UsageError, match=words):
            MeasuredRates(path)(self.model, "mixed", self.replica)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot read"):
            MeasuredRates(tmp_path / "none.json")
