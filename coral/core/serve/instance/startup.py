"""How far the nodes of an instance have come: appeared, loaded, connected."""

from __future__ import annotations

from collections.abc import Mapping

from coral.types.stage import InstanceSpec, KvCapacity, StageSpec


class Startup:
    """The barrier before an instance is ready; it knows whom it still waits for."""

    def __init__(self, spec: InstanceSpec) -> None:
        self.specs: dict[str, StageSpec] = {
            stage.node: stage for stage_nodes in spec.stages for stage, _ in stage_nodes
        }
        self._stages = [[stage.node for stage, _ in stage_nodes] for stage_nodes in spec.stages]
        self.addresses: dict[str, str] = {}
        self.capacities: dict[str, KvCapacity] = {}
        self.wired: set[str] = set()
        self.unreached: dict[str, tuple[str, ...]] = {}
        """By node: to whom nothing goes through from it yet."""

    @property
    def all_loaded(self) -> bool:
        return len(self.capacities) == len(self.specs)

    @property
    def all_wired(self) -> bool:
        return len(self.wired) == len(self.specs)

    def peers(self, node: str) -> Mapping[str, str]:
        """Data addresses of the nodes this one sends to: the next stage's; stage 0's for the last."""
        stage = self.specs[node].stage
        onward = self._stages[(stage + 1) % len(self._stages)] if len(self._stages) > 1 else []
        return {peer: self.addresses[peer] for peer in onward}

    def senders(self, node: str) -> tuple[str, ...]:
        """The nodes that send to this one: the stage before; the last stage's for stage 0."""
        return tuple(self._stages[self.specs[node].stage - 1]) if len(self._stages) > 1 else ()

    def missing(self) -> str:
        """Whom it waits for, and for what."""
        apart = [f"{node}{self._reaching(node)}" for node in self._apart]
        parts = [
            f"{what}: {', '.join(nodes)}"
            for what, nodes in (
                ("did not appear", self._absent),
                ("did not finish loading", self._loading),
                ("did not connect", apart),
            )
            if nodes
        ]
        return "; ".join(parts)

    def suspect(self) -> str:
        """The one node for which all others wait; empty where it is not one."""
        waited_for = self._absent or self._loading
        if not waited_for:
            unreached = [set(self.unreached.get(node, ())) for node in self._apart]
            waited_for = list(set.intersection(*unreached)) if unreached else []
        return waited_for[0] if len(waited_for) == 1 else ""

    @property
    def _absent(self) -> list[str]:
        return [node for node in self.specs if node not in self.addresses]

    @property
    def _loading(self) -> list[str]:
        return [node for node in self.addresses if node not in self.capacities]

    @property
    def _apart(self) -> list[str]:
        return [node for node in self.capacities if node not in self.wired]

    def _reaching(self, node: str) -> str:
        unreached = self.unreached.get(node, ())
        return f" (does not reach {', '.join(unreached)})" if unreached else ""
