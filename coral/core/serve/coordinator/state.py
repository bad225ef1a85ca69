"""The coordinator's state as plain JSON, for `coral status` and the dashboard."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from coral.core.serve.coordinator.adoption import Adopted
from coral.core.serve.coordinator.controller import Controller
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.live_instance import LiveInstance
from coral.core.serve.coordinator.live_machine import LiveMachine
from coral.core.serve.coordinator.requests import RequestTable
from coral.core.serve.coordinator.serving import ServedModel
from coral.types.request import Leg

JOURNAL_LINES = 50


def state(
    *,
    phase: str,
    started_s: float,
    pid: int,
    models: Sequence[ServedModel],
    controller: Controller | None,
    requests: RequestTable | None,
    planner: dict[str, Any],
    journal: Journal,
    deployment: str,
    adopted: Adopted,
) -> dict[str, object]:
    """`phase`: `preparing`, `starting`, `up` or `ending`. Times in seconds, sizes in bytes; `since_s` (when
    this coordinator started) and `adopted.at_s` count from the epoch."""
    machines = list(controller.machines.all().values()) if controller else []
    instances = list(controller.instances.all().values()) if controller else []
    legs = requests.legs() if requests else {}
    circuits = requests.circuits() if requests else {}
    return {
        "phase": phase,
        "pid": pid,
        "deployment": deployment,
        "since_s": started_s,
        "adopted": msgspec.to_builtins(adopted),
        "uptime_s": round(time.time() - started_s, 3),
        "models": [msgspec.to_builtins(model) for model in models],
        "plan": msgspec.to_builtins(controller.plan) if controller else None,
        "planner": planner,
        "machines": [_machine(one) for one in machines],
        "waiting_machines": list(controller.machines.waiting.names()) if controller else [],
        "instances": [
            {**_instance(one, legs.get(one.id, Counter())), "tried_again_in_s": circuits.get(one.id)}
            for one in instances
        ],
        "requests": {
            "in_flight": requests.in_flight if requests else 0,
            "stranded": requests.stranded if requests else 0,
            "waiting": requests.waiting if requests else 0,
            "handing": requests.handing if requests else 0,
            **(msgspec.to_builtins(requests.counters) if requests else {}),
        },
        "journal": [msgspec.to_builtins(entry) for entry in list(journal.entries)[-JOURNAL_LINES:]],
    }


def _machine(one: LiveMachine) -> dict[str, Any]:
    return {
        "id": one.id,
        "type": one.machine.machine_type.name,
        "gpu": one.machine.machine_type.gpu,
        "gpus": one.machine.machine_type.gpus,
        "domain": str(one.machine.domain),
        "market": one.machine.market,
        "price_usd_h": one.machine.price_usd_h,
        "state": one.state.value,
        "agent_pid": one.agent_pid,
        "address": one.place.host,
        "adopted": one.adopted,
        "reason": one.reason,
    }


def _instance(one: LiveInstance, legs: Counter[Leg]) -> dict[str, Any]:
    picks = one.stats.picks if one.stats else {}
    stats = one.stats.nodes if one.stats else {}
    capacities = one.ready.capacities if one.ready else {}
    machines = {seat.spec.node: seat.machine_id for seat in one.layout.seats}
    scheduler = one.processes.get(f"{one.id}/scheduler")
    stages = []
    for members in one.layout.spec.stages:
        nodes = []
        for spec, weight in members:
            process = one.processes.get(spec.node)
            node = {
                "node": spec.node,
                "node_type": str(spec.node_type),
                "machine": machines[spec.node],
                "devices": list(spec.devices),
                "memory_bytes": spec.memory_bytes,
                "threads": spec.threads,
                "weight": weight,
                "pid": process.pid if process else 0,
                "picks": picks.get(spec.node, 0),
            }
            if spec.node in capacities:
                node["kv"] = msgspec.to_builtins(capacities[spec.node])
            if spec.node in stats:
                node["engine"] = msgspec.to_builtins(stats[spec.node])
            nodes.append(node)
        first = members[0][0]
        stages.append({"first_layer": first.first_layer, "end_layer": first.end_layer, "nodes": nodes})
    return {
        "id": one.id,
        "model": one.model,
        "phase": one.template.phase,
        "template": one.template.id,
        "domain": str(one.domain),
        "state": one.state.value,
        "adopted": one.adopted,
        "outdated": one.outdated,
        "reason": one.reason,
        "progress": one.progress,
        "load": legs.total(),
        "legs": dict(legs),
        "running": one.stats.running if one.stats else 0,
        "waiting": one.stats.waiting if one.stats else 0,
        "preemptions": one.stats.preemptions if one.stats else 0,
        "throughput": one.template.throughput,
        "kv_tokens": one.ready.kv_tokens if one.ready else 0,
        "max_request_tokens": one.ready.max_request_tokens if one.ready else 0,
        "scheduler": {
            "pid": scheduler.pid if scheduler else 0,
            "machine": one.layout.scheduler_machine,
            "address": one.address,
        },
        "picture": one.template.placement.picture(),
        "stages": stages,
    }
