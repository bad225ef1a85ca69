"""The `homo` planner: every replica on one node type, what SkyServe and SageServe assume.

Taken: a replica runs on nodes of one type; each model takes, again and again, the strategy with the most
throughput per USD, and the next best where that is sold out (SkyServe, arXiv 2411.01438; SageServe, arXiv
2502.14617, as the Coral paper, arXiv 2605.04357, compares with them). Adapted: strategies are the templates
of the library, so placement and tables are the same as the `coral` planner's; what runs and what is held is
kept first; models take turns by what they lack (`order: in_turn` for one after the other), so that scarcity
does not starve the last; the last replica is trimmed. `choose: ilp` is the best plan any such planner could
make, with its certificate: what is left to `coral` beyond it is the gain of mixing node types in a replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from coral.core.plan.planners import coral
from coral.core.plan.planners.bundles import Bundle, BundleGreedy, singles
from coral.core.plan.planners.combos import combos
from coral.core.plan.planners.counted import counted_plan
from coral.core.plan.planners.options import CoralOptions
from coral.core.plan.planners.permissions import Restricted, one_way
from coral.core.plan.planners.stock import Stock
from coral.core.plan.problem import Problem, state
from coral.errors import UsageError
from coral.hookspecs.planner import Library, View
from coral.hookspecs.solver import Solver
from coral.types.plan import Plan

if TYPE_CHECKING:
    from coral.core.plan.planners.homo_options import HomoOptions

NAME = "homo"
MOST_REPLICAS = 4
"""Of a phase, in a replica of both phases."""


class HomoPlanner:
    def __init__(self, options: HomoOptions) -> None:
        if options.choose == "ilp" and options.phases == "together":
            raise UsageError(
                "planner homo: `phases: together` is greedy only",
                mend="set `choose: greedy` or `phases: apart`",
            )
        self._options = options
        self._best = coral.build(CoralOptions())

    def plan(self, view: View, library: Library, solver: Solver) -> Plan:
        """See `coral.hookspecs.planner.Planner`. Raises LibraryError where a model has no templates."""
        restricted = Restricted(library, self._options.permissions)
        seen = restricted.seen(view)
        if self._options.choose == "ilp":
            best = self._best.plan(seen, restricted, solver)
            return restricted.realized(replace(best, planner=NAME))
        problem = state(one_way(seen, ("prefill", "decode")), restricted)
        stock = Stock(problem)
        greedy = BundleGreedy(
            problem,
            stock,
            self._bundles(problem, stock),
            order=self._options.order,
            trim_last=self._options.trim_last,
        )
        note = "replicas on one node type were chosen greedily: not proven optimal"
        return restricted.realized(counted_plan(problem, restricted, greedy.run(), planner=NAME, note=note))

    def _bundles(self, problem: Problem, stock: Stock) -> list[Bundle]:
        prices = stock.prices()
        if self._options.phases == "apart":
            return singles(problem, prices)
        alike = [one for one in combos(problem, prices, most=MOST_REPLICAS) if _one_type(problem, one)]
        paired = {one.model for one in alike}
        return alike + [one for one in singles(problem, prices) if one.model not in paired]


def _one_type(problem: Problem, bundle: Bundle) -> bool:
    return bool(sum((problem.columns.usage[line] > 0) for line in bundle.lines).astype(bool).sum() == 1)


def build(options: HomoOptions) -> HomoPlanner:
    return HomoPlanner(options)
