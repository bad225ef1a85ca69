"""Spot machines: cheaper, and taken away at the cloud's will.

Where spot machines can be preempted, or only a share of the demand may depend on them, an instance is on
spot machines alone or on none: a domain is then planned as one site per market, and phases are still
coupled per domain. An instance that was on both would be lost as often as the spot part and pay for the
other.

λ_k    preemptions per hour of a spot node of type k: of the offers there that can host it the most frequent
R      hours from order to first token of the model
λ_τ    Σ_k U_k(τ) λ_k: an instance is lost with any one of its nodes
A_τ    1 / (1 + λ_τ R): up for 1/λ_τ, then starting again for R. Throughput counts A_τ T(τ)
charge λ_τ R Σ_k U_k κ_k, and in sites of sliced machines λ_c R p_c per machine: each loss is charged as
       what it makes new, as initialization is, whether the instance runs already or not

Reductions. Parts of a split template are each lost less often than the whole, and are charged less: what
is irreducible stays so.
"""

from __future__ import annotations

from coral.hookspecs.planner import View
from coral.types.hardware import Machine, Market, Offer
from coral.types.model import ModelSpec


def markets_apart(view: View) -> bool:
    """Whether it matters which market an instance's machines are from. Offers that are sold out count: a plan
    should not change its kind when they are back."""
    every: tuple[Offer | Machine, ...] = (*view.offers, *view.machines)
    return view.options.spot_share < 1 or any(
        one.market == "spot" and one.preemption_per_h > 0 for one in every
    )


def worst(markets: set[Market]) -> Market:
    """Of the markets of an instance's machines the one that it is lost with."""
    return "spot" if "spot" in markets else "on_demand"


def restart_h(spec: ModelSpec) -> float:
    """R: hours without an instance that was lost."""
    return spec.initialization_s / 3600.0
