"""Whether another plan is worth its change: hysteresis, so that noise moves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from coral.core.operate.difference import difference, wanted_machines
from coral.core.operate.holdings import MACHINE_HELD, HeldInstance, HeldMachine, OfferKey
from coral.core.operate.served import ROUNDING, Asked, Capacity
from coral.types.plan import Plan


def is_whole(plan: Plan, machines: Sequence[HeldMachine], instances: Sequence[HeldInstance]) -> bool:
    """Whether all that the plan wants is held: nothing of it is missing, and no machine of it leaves."""
    held = Counter(
        OfferKey.of(one.machine) for one in machines if one.state in MACHINE_HELD and not one.leaving
    )
    leaving = {one.machine.id for one in machines if one.leaving}
    missing, _ = difference(plan, machines, instances, leaving)
    return not missing and wanted_machines(plan) <= held


def reason_to_stay(
    plan: Plan,
    running: Plan,
    *,
    whole: bool,
    asked: Mapping[str, Asked],
    asked_before: Mapping[str, Asked],
    min_saving: float,
    promises: bool,
) -> str | None:
    """Why the running plan stays; None where the other one is to be carried out.

    It stays where it is `whole` (all that it wants is held), serves of what is `asked` as much as the other
    one would, and the other one saves less than `min_saving` of its cost, initialization counted. What it
    promises beyond that (survival, shares of spot machines: `promises`) it is known to keep only as long as
    no more is asked than when it was made. With a `min_saving` of 0 every plan is carried out.
    """
    if min_saving == 0 or not whole or set(plan.unkept) != set(running.unkept):
        return None
    if promises and any(_more(asked.get(m, Asked()), asked_before.get(m, Asked())) for m in asked):
        return None
    before, after = _capacity(running, asked), _capacity(plan, asked)
    models = {*before.models(), *after.models()}
    if any(before.served(m) < after.served(m) * (1 - ROUNDING) for m in models):
        return None
    cost = plan.price_usd_h + plan.initialization_usd_h
    saving = running.price_usd_h - cost
    if running.price_usd_h > 0 and saving >= min_saving * running.price_usd_h and saving > 0:
        return None
    if _same(plan, running):
        return None  # nothing changes; its figures are newer
    share = max(0.0, saving) / running.price_usd_h if running.price_usd_h > 0 else 0.0
    return f"another would save {share:.1%} of its cost"


def _more(now: Asked, before: Asked) -> bool:
    return any(
        now.requests_per_s * tokens > before.requests_per_s * was * (1 + ROUNDING)
        for tokens, was in (
            (now.input_tokens, before.input_tokens),
            (now.output_tokens, before.output_tokens),
        )
    )


def _capacity(plan: Plan, asked: Mapping[str, Asked]) -> Capacity:
    able = Capacity(asked)
    for one in plan.instances:
        able.add(one.template, one.domain, one.count)
    return able


def _same(plan: Plan, running: Plan) -> bool:
    return _counts(plan) == _counts(running)


def _counts(plan: Plan) -> tuple[object, ...]:
    machines = sorted((m.machine_type, m.domain, m.market, m.kept + m.new) for m in plan.machines)
    instances = sorted((i.template.id, i.domain, i.count) for i in plan.instances)
    return machines, instances
