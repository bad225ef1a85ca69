from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import market, paper
from benchmarks.data import DataMissing, data_file
from benchmarks.servable import Servable
from coral.core.generate.library import TemplateLibrary
from coral.types.model import ModelSpec

SCARCE, AMPLE = 1.25, 6.0


@pytest.fixture(scope="module")
def specs() -> tuple[ModelSpec, ...]:
    try:
        return paper.models("extended")
    except DataMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def small(specs: tuple[ModelSpec, ...], tmp_path_factory: pytest.TempPathFactory) -> TemplateLibrary:
    folder: Path = tmp_path_factory.mktemp("library")
    return paper.library("core", folder=folder, specs=specs[:3], max_nodes=3, memory_ratio=6)


def test_the_models_are_those_of_table_3(specs: tuple[ModelSpec, ...]) -> None:
    assert [one.shape.layers for one in specs] == [40, 24, 64, 80, 36, 94]
    assert [one.slo.decode_s for one in specs] == [0.06, 0.03, 0.1, 0.08, 0.04, 0.12]
    assert specs[0].demand.input_tokens == pytest.approx(1154.7, abs=0.1)
    assert specs[1].demand.output_tokens == pytest.approx(27.9, abs=0.1)
    assert paper.models("core", percentile=0.95)[0].demand.input_tokens_quantile == 4083


def test_every_size_has_a_price_and_sold_ones_their_own() -> None:
    both = market.listings("extended"), market.listings("extended", "sold")
    assert len(both[0]) == 3 * 5 * 4
    assert len(both[1]) == sum(len(sold) for sold in market.SOLD.values())
    assert set(both[1]) <= set(both[0])
    two = next(one for one in both[0] if one.machine_type.name == "2xL40S")
    assert two.price_usd_h == pytest.approx(2 * 1.861)


def test_prices_are_those_of_the_catalogue() -> None:
    try:
        lines = data_file("cloud_gpu_prices/aws_us-east-2_ap-northeast-2.csv").read_text().splitlines()
    except DataMissing as missing:
        pytest.skip(str(missing))
    read = {tuple(line.split(",")[1:3]): line.split(",")[8] for line in lines[1:]}
    for domain in (market.OHIO, market.SEOUL):
        for name, price in market.SOLD[domain].values():
            assert float(read[domain.region, name]) == price


@pytest.mark.parametrize("supply", [SCARCE, AMPLE])
def test_supply_is_what_was_asked_for(
    specs: tuple[ModelSpec, ...], small: TemplateLibrary, supply: float
) -> None:
    offers = market.market("core", specs[:3], small, supply=supply, seed=1)
    whole = tuple((one.domain, one.machine_type.gpu, one.machine_type.gpus) for one in offers)
    servable = Servable(specs[:3], small, whole)
    counts = np.array([one.obtainable for one in offers], dtype=np.float64)
    assert servable.multiple(counts) >= supply - 1e-6
    assert servable.multiple(counts * 2) == pytest.approx(2 * servable.multiple(counts))
    assert offers == market.market("core", specs[:3], small, supply=supply, seed=1)
    assert offers != market.market("core", specs[:3], small, supply=supply, seed=2)
