"""The order of templates by what they give for their price, in a domain that offers all their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from coral.core.generate.ranking import Ranked, best_templates
from coral.types.hardware import Domain, MachineType, Offer
from tests.core.generate import library_case as case


def offers(prices: Mapping[str, float]) -> list[Offer]:
    return [
        Offer(
            machine_type=MachineType(name=gpu, gpu=gpu, gpus=1),
            domain=Domain(cloud="c", region="r"),
            price_usd_h=price,
            obtainable=4,
        )
        for gpu, price in prices.items()
    ]


def ranked(tmp_path: Path, prices: Mapping[str, float]) -> list[Ranked]:
    library = case.build(tmp_path, case.model())
    return best_templates(library, "m", "mixed", offers(prices), 1000)


def test_what_a_dollar_buys_comes_first(tmp_path: Path) -> None:
    found = ranked(tmp_path, {"small": 1.0, "large": 2.5})
    assert len(found) > 3
    value = [one.per_usd for one in found]
    assert all(one is not None for one in value)
    assert value == sorted(value, key=lambda one: -(one or 0.0))
    for one in found:
        price = sum(
            {"small": 1.0, "large": 2.5}[kind.gpu] * n for kind, n in one.template.placement.nodes.items()
        )
        assert one.price_usd_h == pytest.approx(price)
        assert one.per_usd == pytest.approx(one.template.throughput / price)


def test_what_costs_nothing_comes_before_what_is_cheap_and_what_is_not_sold_last(tmp_path: Path) -> None:
    found = ranked(tmp_path, {"small": 0.0, "large": 1e-3})
    free = [one.price_usd_h == 0 for one in found]
    assert any(free)
    assert not all(free)
    assert free == sorted(free, reverse=True)
    throughput = [one.template.throughput for one in found if one.price_usd_h == 0]
    assert throughput == sorted(throughput, reverse=True)
    unsold = [one.price_usd_h is None for one in ranked(tmp_path, {"small": 1.0})]
    assert any(unsold)
    assert unsold == sorted(unsold)


def test_without_prices_the_most_throughput_comes_first(tmp_path: Path) -> None:
    throughput = [one.template.throughput for one in ranked(tmp_path, {})]
    assert len(throughput) > 3
    assert throughput == sorted(throughput, reverse=True)
