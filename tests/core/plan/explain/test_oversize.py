from __future__ import annotations

import pytest
from msgspec.structs import replace

from coral.core.plan.explain.oversize import oversized
from coral.core.profile.weights import model_bytes
from coral.hookspecs.planner import View
from coral.testing.tables import HOME, spec, view
from coral.types.hardware import Gpu, MachineType, Offer

MODEL = spec("m", 1.0)
WEIGHTS = model_bytes(MODEL.shape)


def market(gpus: int, *, slices: bool = True) -> View:
    kind = MachineType(name=f"own.{gpus}", gpu="own", gpus=gpus)
    some = view([MODEL], [Offer(machine_type=kind, domain=HOME, price_usd_h=1.0, obtainable=0)])
    return replace(some, options=replace(some.options, slices=slices))


def gpu(share: float) -> dict[str, Gpu]:
    """One that holds that share of the weights."""
    memory = int(WEIGHTS * share)
    return {"own": Gpu(name="own", memory_bytes=memory, memory_bytes_per_s=1e9, flops={"bfloat16": 1e12})}


@pytest.mark.parametrize("slices", [True, False])
def test_the_weights_against_the_largest_template(slices: bool) -> None:
    some = market(2, slices=slices)
    assert oversized(some, gpu(0.126), 4) == ()
    (line,) = oversized(some, gpu(0.124), 4)
    assert line.startswith("m is too large for every template: its weights take")
    assert "the 4 nodes that one may have" in line
    assert line.endswith(
        "(own x2); offer larger machines or choose a smaller dtype, or set generate.max_nodes to 5 or more"
    )


def test_more_nodes_than_there_may_be_are_not_proposed() -> None:
    (line,) = oversized(market(1), gpu(0.05), 4)
    assert line.endswith("choose a smaller dtype")


def test_a_model_that_nobody_asks_for_may_be_any_size() -> None:
    idle = replace(market(1), models=(spec("m", 0.0),))
    assert oversized(idle, gpu(0.05), 4) == ()


def test_without_offers_nothing_is_compared() -> None:
    assert oversized(view([MODEL], []), {}, 4) == ()


def test_a_gpu_of_the_catalogue() -> None:
    kind = MachineType(name="one", gpu="L4", gpus=1)
    some = view([MODEL], [Offer(machine_type=kind, domain=HOME, price_usd_h=1.0, obtainable=1)])
    assert oversized(some, {}, 1) == ()
