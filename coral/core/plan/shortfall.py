"""What a plan does not keep of what was asked beside the demand: floors, and what survives a loss.

Counted again from the numbers of instances and machines, without the rows that the solver was given.
"""

from __future__ import annotations

import numpy as np

from coral.core.plan.allocation import Allocation
from coral.core.plan.losses import MachineKind, kinds_of, least_nodes
from coral.core.plan.problem import Problem
from coral.core.plan.services import coupled
from coral.core.plan.survival import promised, zones
from coral.types.plan import ROUNDING
from coral.types.program import Floats

WHAT = {
    "zone": "when a zone is lost",
    "spot": "by on-demand machines alone",
    "machine": "when a machine is lost",
}


def shortfalls(problem: Problem, found: Allocation) -> list[str]:
    """A line for each floor or survival that is not kept."""
    lines = []
    counts = found.counts.astype(np.float64)
    for model in sorted({need.model for need in problem.needs if need.demand > 0}):
        spec = problem.view.models[model]
        served = min(1.0, served_share(problem, _able(problem, counts), model))
        if served < spec.floor - ROUNDING:
            lines.append(f"{spec.name}: the floor of {spec.floor:.0%} cannot be kept: {served:.0%} is served")
        for loss, share in promised(problem, model):
            left, where = _left(problem, found, model, loss)
            if left < share - ROUNDING:
                lines.append(
                    f"{spec.name}: {max(left, 0.0):.0%} of the demand can be served {WHAT[loss]}{where}, "
                    f"{share:.0%} is asked for{_why(problem, loss)}"
                )
    return lines


def _why(problem: Problem, loss: str) -> str:
    if loss == "zone" and len(zones([site.domain for site in problem.sites])) < 2:
        return "; there are machines in one zone only"
    return ""


def served_share(problem: Problem, able: Floats, model: int) -> float:
    """What the throughputs `able` (services, places) can serve of a model's demand, as a share of it."""
    mine = [i for i, need in enumerate(problem.needs) if need.model == model and need.demand > 0]
    rates = {i: able[i] / problem.needs[i].demand for i in mine}
    total = sum(float(rates[i].sum()) for i in mine if problem.needs[i].phase == "mixed")
    apart = [rates[i] for i in mine if problem.needs[i].phase != "mixed"]
    if apart and coupled(problem.view.models[model], problem.view):
        total += float(np.min(apart, axis=0).sum())
    elif apart:
        total += min(float(rate.sum()) for rate in apart)
    return total


def _able(problem: Problem, counts: Floats) -> Floats:
    columns = problem.columns
    out = np.zeros((len(problem.needs), int(problem.places.max(initial=-1)) + 1))
    np.add.at(out, (columns.service, problem.places[columns.domain]), columns.throughput * counts)
    return out


def _left(problem: Problem, found: Allocation, model: int, loss: str) -> tuple[float, str]:
    """What is left after the worst loss, and which that is."""
    counts = found.counts.astype(np.float64)
    sites = problem.sites
    if loss == "machine":
        return _after_machine(problem, found, model)
    if loss == "spot":
        gone = [(np.array([site.market == "spot" for site in sites]), "")]
    else:
        gone = [
            (np.array([site.domain in zone for site in sites]), f" ({', '.join(map(str, sorted(zone)))})")
            for zone in zones([site.domain for site in sites])
        ]
    left = [
        (
            served_share(problem, _able(problem, np.where(lost[problem.columns.domain], 0.0, counts)), model),
            name,
        )
        for lost, name in gone
    ]
    return min(left, default=(0.0, ""))


def _after_machine(problem: Problem, found: Allocation, model: int) -> tuple[float, str]:
    counts = found.counts.astype(np.float64)
    able = _able(problem, counts)
    worst = (served_share(problem, able, model), "")
    present = {
        MachineKind(site=index, gpu=site.lot(at).gpu, gpus=site.lot(at).gpus)
        for index, (site, row) in enumerate(zip(problem.sites, found.machines, strict=True))
        for at, count in enumerate(row)
        if count > 0
    }
    for kind in kinds_of(problem):
        if kind not in present:
            continue
        name = f" ({kind.gpu} ×{kind.gpus} in {problem.sites[kind.site].domain})"
        for services in _hit_together(problem, model):
            after = able.copy()
            for service in services:
                lost = taken_along(problem, counts, kind, service)
                after[service, problem.places[kind.site]] -= lost
            left = served_share(problem, np.maximum(after, 0.0), model)
            worst = min(worst, (left, name))
    return worst


def _hit_together(problem: Problem, model: int) -> list[list[int]]:
    """Services of a model that a machine may take from at once: a whole machine holds a node of one alone."""
    mine = [i for i, need in enumerate(problem.needs) if need.model == model]
    return [mine] if problem.view.options.slices else [[service] for service in mine]


def taken_along(problem: Problem, counts: Floats, kind: MachineKind, service: int) -> float:
    """The most throughput of a service that a machine of a kind can hold, its nodes' instances whole: largest
    throughput per GPU first, the last one in part."""
    least = least_nodes(problem, kind)
    lines = np.flatnonzero((problem.columns.service == service) & (least > 0) & (counts > 0))
    rate = problem.columns.throughput[lines]
    lost, room = 0.0, float(kind.gpus)
    for at in np.argsort(-rate / least[lines], kind="stable"):
        fit = min(float(counts[lines[at]]), room / least[lines[at]])
        lost += fit * rate[at]
        room -= fit * least[lines[at]]
        if room <= 0:
            break
    return lost
