"""Which node of each stage serves a request: weighted round robin over the nodes that have room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coral.hookspecs.router import WeightedRoundRobin


class Dispatcher:
    """`stages[s]` lists (node, weight) of stage s; weights are the placement's node throughputs."""

    def __init__(self, stages: Sequence[Sequence[tuple[str, float]]]) -> None:
        self._stages = [list(stage) for stage in stages]
        self._robins: list[WeightedRoundRobin[str]] = [WeightedRoundRobin() for _ in stages]
        self.picks = {node: 0 for stage in stages for node, _ in stage}
        """Requests sent to each node since start."""

    @property
    def stages(self) -> Sequence[Sequence[tuple[str, float]]]:
        return self._stages

    def pick(self, has_room: Callable[[str], bool]) -> tuple[str, ...] | None:
        """A node per stage, or None where some stage has no node with room; then no turn is used up."""
        among = [[(node, weight) for node, weight in stage if has_room(node)] for stage in self._stages]
        if not all(among):
            return None
        route = tuple(robin.pick(nodes) for robin, nodes in zip(self._robins, among, strict=True))
        for node in route:
            self.picks[node] += 1
        return route
