"""What a plan is made from, gathered for a command that runs to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig
    from coral.hookspecs.planner import Library, Planner, View
    from coral.hookspecs.solver import Solver


class Ground(NamedTuple):
    """`rebuilt` makes the template library of a view whose models have other SLOs; `hopeless` says of a view
    which of its models no template can hold."""

    view: View
    library: Library
    planner: Planner
    solver: Solver
    rebuilt: Callable[[View], Library]
    hopeless: Callable[[View], tuple[str, ...]]


def gather(session: LoadedConfig, tell: Callable[[str], None]) -> Ground:
    """Asks the clouds, builds the templates that are missing; `tell` hears what is being done.

    Raises what `ask_clouds` and `prepare` raise.
    """
    from coral.cli.market import ask_clouds
    from coral.core.generate.assemble import prepare
    from coral.core.plan.blamed import BlamedPlanner
    from coral.core.plan.explain.oversize import oversized
    from coral.core.solve import supervised_solver
    from coral.hookspecs.planner import View

    config, registry = session.config, session.registry
    tell("asking the clouds")
    offers, machines, gpus = ask_clouds(session)

    def progress(done: float, total: float, what: str) -> None:
        tell(f"templates: {f'{done / total:.0%} ' if total else ''}{what}")

    models, library = prepare(config, registry, offers, gpus, progress)
    use = config.plan.planner
    planner = BlamedPlanner(registry.build("planner", use.use, use.options), use.use)
    solver = supervised_solver(
        registry, config.solver.use, config.solver.options, time_limit_s=config.solver.time_limit
    )
    view = View(models=models, offers=tuple(offers), machines=tuple(machines), options=config.plan_options())

    def rebuilt(changed: View) -> Library:
        return prepare(config, registry, offers, gpus, progress, changed.models)[1]

    def hopeless(changed: View) -> tuple[str, ...]:
        return oversized(changed, gpus, config.generate.max_nodes)

    return Ground(view, library, planner, solver, rebuilt, hopeless)
