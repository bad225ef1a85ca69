"""Turn a solved row into a placement: how many layers each stage holds, and each node's weight."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence

import msgspec

from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.errors import LibraryError
from coral.types.model import Role
from coral.types.placement import Placement, Stage, StageNode
from coral.types.program import Floats


def roles_of(stages: int) -> tuple[Role, ...]:
    """The role of each stage of a pipeline."""
    if stages == 1:
        return ("only",)
    middle: list[Role] = ["mid"] * (stages - 2)
    return ("first", *middle, "last")


def split(rates: Sequence[Floats], layers: int) -> tuple[int, ...]:
    """Layers per stage, each at least 1, summing to `layers`, with the greatest possible least rate.

    `rates[s][j-1]` is f_s(j), non-increasing. Each layer goes to the stage that is fastest with one
    more: the least rate is t* (the closed form takes the same values in the same order), and what slack
    there is goes where it leaves the most.
    """
    if not 1 <= len(rates) <= layers:
        raise LibraryError(f"{layers} layers cannot be split over {len(rates)} stages")
    held = [1] * len(rates)
    queue = [(-rate[1], s) for s, rate in enumerate(rates) if layers > 1]
    heapq.heapify(queue)
    for _ in range(layers - len(rates)):
        _, s = heapq.heappop(queue)
        held[s] += 1
        if held[s] < layers:
            heapq.heappush(queue, (-rates[s][held[s]], s))
    return tuple(held)


def placement(
    table: ThroughputTable,
    members: Sequence[int],
    stage_of: Sequence[int],
    budgets: ThroughputTable | None = None,
    units: Sequence[int] = (),
) -> Placement:
    """The placement of nodes `members` (indices of the table's node types) in their stages.

    `units[stage]`: units of the SLO, a stage's row of `budgets`; 0, or none given: ℓ/S each.
    """
    stages = max(stage_of) + 1
    nodes = [[m for m, s in zip(members, stage_of, strict=True) if s == stage] for stage in range(stages)]
    of: list[tuple[ThroughputTable, tuple[int, int]]] = []
    for stage, role in enumerate(roles_of(stages)):
        given = units[stage] if budgets is not None and units else 0
        if budgets is not None and given:
            of.append((budgets, (given - 1, ROLES.index(role))))
        else:
            of.append((table, (stages - 1, ROLES.index(role))))
    rates = [one.rate[at][:, held].sum(axis=1) for (one, at), held in zip(of, nodes, strict=True)]
    out: list[Stage] = []
    start = 0
    for (one, at), held, count in zip(of, nodes, split(rates, table.layers), strict=True):
        members_of_stage = tuple(
            StageNode(
                node_type=table.node_types[m],
                throughput=float(one.rate[at][count - 1, m]),
                tp=int(one.tp[at][count - 1, m]),
            )
            for m in held
        )
        out.append(Stage(first_layer=start, end_layer=start + count, nodes=members_of_stage))
        start += count
    return Placement(stages=tuple(out))


def template_id(model: str, phase: str, placed: Placement) -> str:
    """Readable and stable: model, phase, nodes, and a digest of the placement without its rates."""
    nodes = sorted((str(kind).replace(" ", ""), count) for kind, count in placed.nodes.items())
    named = "+".join(f"{count}{kind}" for kind, count in nodes)
    shape = [
        (stage.first_layer, stage.end_layer, [(str(node.node_type), node.tp) for node in stage.nodes])
        for stage in placed.stages
    ]
    digest = hashlib.blake2b(msgspec.json.encode(shape), digest_size=4).hexdigest()
    return f"{model.replace('/', '_')}.{phase}.{named}.{digest}"
