from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import helix, helix_data
from benchmarks.data import DataMissing
from coral.types.step import StepWork


@pytest.fixture(autouse=True)
def _data() -> None:
    try:
        helix_data.nodes()
        helix_data.profiles()
    except DataMissing as missing:
        pytest.skip(str(missing))


def test_the_cluster_is_the_papers() -> None:
    assert helix_data.counts() == {"A100": 4, "V100": 6, "L4": 8, "L4x2": 4, "T4": 10, "T4x2": 6, "T4x4": 4}
    assert sum(helix_data.GPUS[kind] for kind in helix_data.nodes()) == 64


def test_the_published_placement_covers_the_model_and_fits() -> None:
    rates = helix_data.usual_rates()
    spans = helix_data.spans(rates)
    assert {layer for span in spans for layer in range(span.first_layer, span.end_layer)} == set(range(80))
    assert all(span.throughput > 0 for span in spans)


def test_what_helix_reports_lies_below_its_flow_and_the_flow_below_the_bound() -> None:
    line, staged = helix.flows((8,), time_limit_s=0.0)
    assert staged["stages"] == len(staged["layers"]) == 8
    assert sum(staged["layers"]) == 80
    assert 0 < staged["flow_decode_tokens_s"] < line["bound_decode_tokens_s"]
    assert line["reported_online_decode_tokens_s"] < line["reported_offline_decode_tokens_s"]
    assert line["reported_offline_decode_tokens_s"] < line["flow_decode_tokens_s"]
    assert line["flow_decode_tokens_s"] < line["bound_decode_tokens_s"]


def test_profiles_are_read_in_milliseconds_per_layer() -> None:
    cost = helix.ProfiledCost("A100")
    one = cost.step_s(StepWork(decode_rows=2), 10, first=False, last=False)
    assert one == pytest.approx(10 * 1.4e-3)
    more = cost.step_s(StepWork(decode_rows=2, prefill_tokens=500), 10, first=False, last=False)
    assert more > one
    beyond = cost.step_s(StepWork(prefill_tokens=30_000), 1, first=False, last=False)
    assert beyond > cost.step_s(StepWork(prefill_tokens=11_250), 1, first=False, last=False)


def test_plans_over_the_cluster(tmp_path: Path) -> None:
    templates = helix.library(tmp_path, max_nodes=5)
    some = helix._planned(templates, 50.0, helix_data.counts(), time_limit_s=10.0)
    assert some["decode_tokens_s"] == pytest.approx(50.0)
    assert 0 < some["price_usd_h"] < sum(helix.price(k) * n for k, n in helix_data.counts().items())
