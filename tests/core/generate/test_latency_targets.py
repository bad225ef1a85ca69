"""A longer SLO never makes a template serve less: nobody is obliged to take all of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from coral.core.generate.hardware import Hardware
from coral.core.generate.job import GenerateOptions, StageBudgets, job_of, undominated
from coral.core.generate.search import Search, search
from coral.core.profile.targets import DECADE
from coral.types.model import Phase
from coral.types.program import Floats
from tests.core.generate import library_case as case

LADDER = [round(digit * 10.0**power, 6) for power in (-2, -1, 0) for digit in DECADE]
WIDEST = max(b / a for a, b in pairwise(LADDER))
UNIFORM = GenerateOptions(max_nodes=3, memory_ratio=1e6)


def task(phase: Phase, prefill_s: float, decode_s: float, small_mib: int, options: GenerateOptions) -> Search:
    hardware = Hardware(
        node_types=case.KINDS,
        gpus=case.gpus(small_mib),
        costs=case.cost,
        capabilities=case.capabilities,
        hop=case.HOP,
    )
    model = case.model(phases=(phase,), prefill_s=prefill_s, decode_s=decode_s)
    return job_of(model, phase, hardware, options).task


def best_of(task: Search) -> Callable[[Floats], float]:
    """The throughput of a set of nodes, of which a template need not use all."""
    found = search(task)

    def best(usage: Floats) -> float:
        inside = (found.usage <= usage).all(axis=1)
        return float(found.throughput[inside].max(initial=0.0))

    return best


USAGES = [np.array([a, b]) for a in range(4) for b in range(4 - a) if a + b]


@pytest.mark.parametrize(
    ("phase", "budgets"),
    [("prefill", "uniform"), ("decode", "uniform"), ("mixed", "uniform"), ("decode", "free")],
)
def test_a_longer_slo_on_the_ladder_never_does_worse(phase: Phase, budgets: StageBudgets) -> None:
    options = msgspec.structs.replace(UNIFORM, stage_budgets=budgets, budget_units=6)
    rose = bound = 0
    for small_mib in (45, 70):
        before = np.zeros(len(USAGES))
        for decode_s in (0.02, 0.03, 0.05, 0.1, 0.3, 1.0):
            # a time to first token of the coarse ladder, where phases are mixed
            one = task(phase, 10 * decode_s if phase == "prefill" else 5.0, decode_s, small_mib, options)
            best = best_of(one)
            now = np.array([best(usage) for usage in USAGES])
            assert (now >= before * (1 - 1e-12)).all()
            rose += bool((now > before * 1.01).any())
            alone = best_of(msgspec.structs.replace(one, shorter=()))
            bound += any(alone(usage) < best(usage) * 0.9 for usage in USAGES)
            before = now
    assert rose > 2
    assert bound > 2  # memory bound what takes all of the SLO, and a shorter target did better


@pytest.mark.parametrize("seed", range(6))
def test_between_two_rungs_it_falls_by_no_more_than_their_ratio(seed: int) -> None:
    rng = np.random.default_rng(seed)
    small_mib = int(rng.integers(45, 90))
    slos = np.sort(np.exp(rng.uniform(np.log(0.01), np.log(2.0), 6)))
    best = [best_of(task("decode", 1.0, float(slo), small_mib, UNIFORM)) for slo in slos]
    for i in range(len(slos)):
        for longer in best[i:]:
            for usage in USAGES:
                assert longer(usage) >= best[i](usage) / WIDEST * (1 - 1e-9)


def test_targets_that_another_matches_everywhere_are_left_out() -> None:
    a, b, c, d = (np.array(x, float) for x in ([1, 1], [2, 1], [0, 3], [1, 2]))
    assert undominated([a, b, c, d]) == [0, 1, 2, 3]
    assert undominated([b, a, c]) == [0, 2]
    assert undominated([a, b]) == [0, 1]  # the first is the SLO itself
    assert undominated([c, a, b, b]) == [0, 2]
