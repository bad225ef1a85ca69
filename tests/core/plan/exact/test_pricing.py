"""What covers cost, against enumeration of all small multisets."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from coral.core.plan.exact.covers import Cover, Strand
from coral.core.plan.exact.pricing import CoverPricer
from coral.types.program import Floats

MOST = 4
"""No cover here needs more instances: every column serves a quarter."""


def cover_of(draw: np.random.Generator, cells: int, strands: int, each: int) -> Cover:
    made, at = [], 0
    for _ in range(cells):
        cell = []
        for _ in range(strands):
            share = np.round(draw.uniform(0.26, 1.0, each), 3)
            cell.append(Strand(at=np.arange(at, at + each), share=share))
            at += each
        made.append(tuple(cell))
    none = np.zeros(0, dtype=np.int64)
    return Cover(rows=(0,), columns=np.arange(at), hidden=none, cells=tuple(made))


def strand_covers(strand: Strand, upper: Floats, part: float) -> list[tuple[int, ...]]:
    """Multisets of positions that serve `part` of the strand."""
    found: list[tuple[int, ...]] = [()] if part <= 1e-9 else []
    for count in range(1, MOST + 1):
        for picked in combinations_with_replacement(range(len(strand.at)), count):
            taken = np.bincount(picked, minlength=len(strand.at))
            if (taken <= upper[strand.at]).all() and strand.share @ taken >= part - 1e-9:
                found.append(tuple(strand.at[list(picked)].tolist()))
    return found


def least_of(strand: Strand, upper: Floats, cost: Floats, part: float, column: int = -1) -> float:
    """The cheapest cover of a part, of those that have the column."""
    some = [one for one in strand_covers(strand, upper, part) if column < 0 or column in one]
    return min((float(cost[list(one)].sum()) for one in some), default=np.inf)


def least_whole(cover: Cover, upper: Floats, cost: Floats, column: int = -1) -> float:
    """The cheapest cover by one cell, or by two cells that share in twentieths."""
    splits = [(step / 20, 1 - step / 20) for step in range(21)]
    least = np.inf
    for parts in splits if len(cover.cells) == 2 else [(1.0, 0.0)]:
        total = 0.0
        for cell, part in zip(cover.cells, parts, strict=False):
            for strand in cell:
                total += least_of(strand, upper, cost, part, column if column in strand.at else -1)
        least = min(least, total)
    return least


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_one_strand(seed: int, limited: bool) -> None:
    draw = np.random.default_rng(seed)
    cover = cover_of(draw, 1, 1, 6)
    upper = draw.integers(1, 3, 6).astype(float) if limited else np.full(6, np.inf)
    pricer = CoverPricer(cover, upper)
    cost = np.round(draw.uniform(1, 9, 6), 2)
    all_covers = strand_covers(cover.cells[0][0], upper, 1.0)
    prices = [float(cost[list(one)].sum()) for one in all_covers]
    known = {tuple(sorted(one)) for one in all_covers}
    priced = pricer.price(cost)
    assert priced.least == pytest.approx(min(prices))
    assert cost[priced.items] @ priced.counts == pytest.approx(min(prices))
    with_each = pricer.with_each(cost)
    for column in range(6):
        least = min(p for p, one in zip(prices, all_covers, strict=True) if column in one)
        assert with_each[column] <= least + 1e-9
    limit = min(prices) * 1.4
    listed = pricer.within(cost, limit, 10_000)
    assert listed is not None
    got = {tuple(sorted(line[line >= 0].tolist())) for line in listed}
    for one, price in zip(all_covers, prices, strict=True):
        less = {tuple(sorted(one[:at] + one[at + 1 :])) for at in range(len(one))}
        if price <= limit and not less & known:
            assert tuple(sorted(one)) in got


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_two_strands_and_splits_are_never_overpriced(seed: int, cells: int) -> None:
    draw = np.random.default_rng(seed + 50)
    cover = cover_of(draw, cells, 2, 3)
    columns = len(cover.columns)
    upper = np.full(columns, np.inf)
    cost = np.round(draw.uniform(1, 9, columns), 2)
    pricer = CoverPricer(cover, upper)
    true = least_whole(cover, upper, cost)
    least = pricer.price(cost).least
    assert least <= true + 1e-9
    if cells == 1:
        assert least == pytest.approx(true)
    with_each = pricer.with_each(cost)
    for column in range(columns):
        assert with_each[column] <= least_whole(cover, upper, cost, column) + 1e-9


def test_a_cell_that_can_serve_nothing_leaves_the_others_to_split() -> None:
    """A domain without columns of one phase: the demand is split between the two domains beside it."""
    strands = [
        Strand(at=np.array(at, dtype=np.int64), share=np.full(len(at), share))
        for at, share in (([0], 0.5), ([], 0.5), ([1], 0.5), ([2], 0.5))
    ]
    none = np.zeros(0, dtype=np.int64)
    cells = ((strands[0], strands[1]), (strands[2],), (strands[3],))
    cover = Cover(rows=(0,), columns=np.arange(3), hidden=none, cells=cells)
    pricer = CoverPricer(cover, np.array([9.0, 1.0, 1.0]))
    cost = np.array([1.0, 2.0, 3.0])
    assert pricer.split_least(cost) == pytest.approx(5.0)
    assert pricer.with_each(cost)[1:] == pytest.approx([4.0, 5.0])
    assert pricer.price(cost).least <= 5.0
