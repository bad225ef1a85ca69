"""Helix's published cluster, placement and profiles (`helix_profiles`), as this package's types.

Llama-2 70B on 42 nodes. The profiles give milliseconds per layer by batch; what a node does with j layers
is worked out as Helix's own placement does (arXiv 2406.01566 and its artifact): a request is 750 prompt
tokens and 240 output tokens, KV fills 30 % of its room, at most half of a node's memory holds weights, and
a node's batch is its share of a round trip over all layers. Two figures are not in the data: the room for
KV, 0.83 of the memory less 1.3 GB and the weights (a fit to vLLM's block counts on A100 and V100 in the
artifact), and the usual number of layers of a node (the artifact's start values).
"""

from __future__ import annotations

import configparser
import csv
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct

from benchmarks.data import data_file
from coral.core.plan.planners.flow import Span
from coral.core.profile.throughput import ROLES, ThroughputTable
from coral.types.hardware import NodeType
from coral.types.program import Floats

LAYERS = 80
PROMPT, OUTPUT = 750, 240
LAYER_BYTES = 1.714e9
KV_TOKEN_BYTES = 4096
"""Of one token in one layer."""
FILLED = 0.3
USUAL_LAYERS = {"A100": 8, "V100": 3, "L4": 4, "L4x2": 9, "T4": 3, "T4x2": 6, "T4x4": 12}
MOST_LAYERS = {"A100": 12, "V100": 4, "L4": 7, "L4x2": 14, "T4": 4, "T4x2": 9, "T4x4": 18}
"""Within half of the memory, but for what the artifact's authors allow."""
MEMORY_GIB = {"A100": 40, "V100": 16, "L4": 24, "L4x2": 48, "T4": 16, "T4x2": 32, "T4x4": 64}
GPUS = {"A100": 1, "V100": 1, "L4": 1, "L4x2": 2, "T4": 1, "T4x2": 2, "T4x4": 4}


class Profile(Struct, frozen=True, kw_only=True, eq=False):
    """ms per layer at batches of so many prompt tokens, or so many decoding sequences."""

    prompt: tuple[Floats, Floats]
    decode: tuple[Floats, Floats]

    def prompt_ms(self, tokens: Any) -> Any:
        return _interpolated(tokens, *self.prompt)

    def decode_ms(self, rows: Any) -> Any:
        return _interpolated(rows, *self.decode)


def _interpolated(x: Any, points: Floats, values: Floats) -> Any:
    """Linear between points, and beyond the last as between the last two."""
    inside = np.interp(x, points, values)
    slope = max(float(values[-1] - values[-2]) / float(points[-1] - points[-2]), 0.0)
    return inside + np.maximum(np.asarray(x) - points[-1], 0.0) * slope


@cache
def profiles(model: str = "llama2_70b") -> Mapping[str, Profile]:
    read: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with data_file("helix_profiles/helix_bs2time.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["model"] == model:
                points = read.setdefault(row["gpu"], {}).setdefault(row["phase"], [])
                points.append((float(row["batch_tokens"]), float(row["latency_ms_per_layer"])))
    names = {name.lower(): name for name in GPUS}
    return {
        names[gpu]: Profile(**{phase: _columns(points) for phase, points in by_phase.items()})
        for gpu, by_phase in read.items()
    }


def _columns(points: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
    ordered = np.array(sorted(points))
    return ordered[:, 0], np.maximum.accumulate(ordered[:, 1])


@cache
def nodes() -> tuple[str, ...]:
    """The type of every compute node of the cluster, by its number."""
    parser = configparser.ConfigParser()
    parser.read(data_file("helix_profiles/cluster42_high_heterogeneity.ini"))
    count = int(parser["NodeNames"]["total_compute_nodes"])
    return tuple(parser[f"ComputeNode-{index}"]["type"] for index in range(count))


def counts() -> dict[str, int]:
    return {kind: nodes().count(kind) for kind in GPUS}


def spans(rates: Mapping[str, Floats]) -> list[Span]:
    """Helix's own placement, with what every node then does."""
    parser = configparser.ConfigParser()
    parser.read(data_file("helix_profiles/helix_ilp_placement_cluster42.ini"))
    offset = int(parser["Settings"]["offset"])
    found = []
    for index, kind in enumerate(nodes()):
        layers = json.loads(parser["Solution"][f"compute_node_{index + offset}"])
        found.append(
            Span(
                first_layer=layers[0],
                end_layer=layers[-1] + 1,
                throughput=float(rates[kind][len(layers) - 1]),
            )
        )
    return found


def reference() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data_file("helix_profiles/helix_reference_results.json").read_text())
    return found


def usual_rates() -> dict[str, Floats]:
    """Tokens/s, prompt and output together, of a node of each type with 1..80 layers; 0 where it cannot hold
    them. The layer times that a round trip is made of come from the rates themselves: ten rounds."""
    pace = {"A100": 80.0, "V100": 40.0, "L4": 20.0, "L4x2": 30.0, "T4": 12.5, "T4x2": 20.0, "T4x4": 30.0}
    for _ in range(10):
        pace = {kind: _rate(kind, USUAL_LAYERS[kind], pace) * USUAL_LAYERS[kind] for kind in GPUS}
    found = {}
    for kind in GPUS:
        most = MOST_LAYERS[kind]
        rate = np.zeros(LAYERS)
        rate[:most] = [_rate(kind, j, pace) for j in range(1, most + 1)]
        found[kind] = np.minimum.accumulate(rate)
    return found


def _rate(kind: str, layers: int, pace: Mapping[str, float]) -> float:
    number = counts()
    total = sum(number[k] * USUAL_LAYERS[k] for k in GPUS)
    mean = sum(number[k] * USUAL_LAYERS[k] / pace[k] for k in GPUS) / total
    own = layers / pace[kind]
    share = own / (own + (LAYERS - layers) * mean)
    room = GPUS[kind] * (0.83 * MEMORY_GIB[kind] / GPUS[kind] * 2**30 - 1.27e9) - layers * LAYER_BYTES
    held = FILLED * max(room, 0.0) / (layers * KV_TOKEN_BYTES) / (PROMPT + OUTPUT)
    batch = min(max(round(held * share), 1), OUTPUT)
    profile = profiles()[kind]
    per_request_ms = profile.prompt_ms(PROMPT) + OUTPUT / batch * profile.decode_ms(batch)
    return float((PROMPT + OUTPUT) / (layers * per_request_ms) * 1e3)


def table(rates: Mapping[str, Floats], stages: int) -> ThroughputTable:
    """The same rates for every number of stages and role."""
    kinds = tuple(NodeType(kind, 1) for kind in GPUS)
    rate = np.zeros((stages, len(ROLES), LAYERS, len(kinds)))
    for at, kind in enumerate(GPUS):
        rate[..., at] = rates[kind]
    return ThroughputTable(node_types=kinds, rate=rate, tp=np.ones(rate.shape, dtype=np.int8))
