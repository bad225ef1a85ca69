"""Which looser latency limit of one model would serve all: see `mends`."""

from __future__ import annotations

from collections.abc import Iterator

from coral.core.plan.explain.mend import FEW, Mend, mend_of, unmet
from coral.core.plan.explain.questions import Rebuilt
from coral.core.plan.explain.solves import Solves
from coral.core.plan.explain.what_if import model_path, with_limit
from coral.errors import CoralError
from coral.hookspecs.planner import Library, View
from coral.types.model import ModelSpec, Phase
from coral.types.plan import Plan

LADDER = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
FAR_LADDER = tuple(10.0**e for e in range(2, 13))
"""Only for a service that has no template at all."""
BETWEEN = (0.2, 0.5)
"""Of the step of the far ladder that serves all: whether less does."""


def looser_slos(view: View, library: Library, plan: Plan, solves: Solves, rebuilt: Rebuilt) -> Iterator[Mend]:
    for spec in unmet(view, plan)[:FEW]:
        for limit in ("prefill", "decode"):
            short = [
                one.phase
                for one in plan.services
                if one.model == spec.name and not one.met and one.phase in (limit, "mixed")
            ]
            if short:
                mend = _loosened(view, spec, limit, short[0], library, solves, rebuilt)
                if mend is not None:
                    yield mend


def _loosened(
    view: View,
    spec: ModelSpec,
    limit: str,
    phase: Phase,
    library: Library,
    solves: Solves,
    rebuilt: Rebuilt,
) -> Mend | None:
    now = spec.slo.prefill_s if limit == "prefill" else spec.slo.decode_s

    def has_templates(built: Library) -> bool:
        return bool((built.table(spec.name, phase).throughput > 0).any())

    def tried(factor: float) -> Mend | None:
        looser = float(f"{now * factor:.6g}")
        changed = with_limit(view, spec.name, limit, looser)
        built = None if solves.over else _built(changed, rebuilt)
        if built is None or not has_templates(built):
            return None
        about = f"{limit} of {spec.name} in {_duration(looser)} instead of {_duration(now)}"
        what_if = [f"{model_path(spec, f'slo.{limit}')}={_duration(looser)}"]
        return mend_of("slo", about, what_if, solves.plan(changed, built))

    ladder: tuple[float, ...] = LADDER
    if not has_templates(library):
        loosest = _built(with_limit(view, spec.name, limit, now * FAR_LADDER[-1]), rebuilt)
        if loosest is None or not has_templates(loosest):
            return None  # it is not for this limit that there are none
        ladder = (*LADDER, *FAR_LADDER)
    for factor in ladder:
        mend = tried(factor)
        if mend is not None:
            nearer = (tried(factor * share) for share in BETWEEN) if factor in FAR_LADDER else iter(())
            return next((one for one in nearer if one is not None), mend)
    return None


def _built(view: View, rebuilt: Rebuilt) -> Library | None:
    try:
        return rebuilt(view)
    except CoralError:  # templates that cannot be built are none
        return None


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.12g}s"
    return f"{seconds * 1e3:.12g}ms" if seconds >= 1e-3 else f"{seconds * 1e6:.12g}us"
