"""What each model needs: one service per (model, phase), in the phase's own unit of throughput."""

from __future__ import annotations

from msgspec import Struct

from coral.hookspecs.planner import View
from coral.types.model import Demand, ModelSpec, Phase


class Need(Struct, frozen=True, kw_only=True):
    """Throughput that the instances of (model, phase) together must have: `demand` = D·n/u.

    D requests/s, n tokens of one request in that phase (1 where prefill and decode are mixed: the unit
    is requests/s), u the target utilization. `model` indexes the view's models.
    """

    model: int
    name: str
    phase: Phase
    demand: float
    per_request: float
    """n/u: what one request/s takes of the throughput."""


def per_request(demand: Demand, phase: Phase) -> float:
    """n: input tokens for prefill, output tokens for decode, 1 for mixed."""
    if phase == "prefill":
        return demand.input_tokens
    return demand.output_tokens if phase == "decode" else 1.0


def needs(view: View) -> tuple[Need, ...]:
    """All services in the order of the models and their phases; a demand of 0 needs no instance."""
    found = []
    for index, spec in enumerate(view.models):
        for phase in spec.phases:
            each = per_request(spec.demand, phase) / view.options.target_utilization
            demand = spec.demand.requests_per_s * each
            found.append(Need(model=index, name=spec.name, phase=phase, demand=demand, per_request=each))
    return tuple(found)


def coupled(spec: ModelSpec, view: View) -> bool:
    """Whether prefill and decode must be served in one and the same domain."""
    return view.options.couple_phases and "prefill" in spec.phases and "decode" in spec.phases


def initialization_share(spec: ModelSpec, view: View) -> float:
    """K: time from order to first token over the span it is charged over."""
    return spec.initialization_s / view.options.amortize_s
