"""Request-size buckets: how many requests/s one replica serves when all of them are of one size class.

The classes are those of a model's demand. A replica's load is linear in them: serving λ_b requests/s of
bucket b takes Σ_b λ_b / R_b of a replica, where R_b is its rate in that bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from coral.errors import UsageError
from coral.types.hardware import NodeType
from coral.types.model import ModelSpec, Phase, RequestClass


class Replica(Struct, frozen=True, kw_only=True):
    """A kind of replica of one (model, phase): its nodes and its throughput at the mean size."""

    nodes: Mapping[NodeType, int]
    throughput: float


class BucketRates(Protocol):
    def __call__(self, model: ModelSpec, phase: Phase, replica: Replica) -> Sequence[float] | None:
        """requests/s of one replica in every class of the model's demand, 0 where it cannot serve that
        class; None where it is not to be used at all."""
        ...


def library_rates(model: ModelSpec, phase: Phase, replica: Replica) -> list[float]:
    """From the throughput at the mean size: tokens/s over the tokens of a class. Where phases are mixed a
    request counts by all of its tokens. How attention grows with length is not seen."""
    if phase == "mixed":
        mean = sum(one.share * _tokens(one, phase) for one in model.demand.classes)
        return [_over(replica.throughput * mean, _tokens(one, phase)) for one in model.demand.classes]
    return [_over(replica.throughput, _tokens(one, phase)) for one in model.demand.classes]


class MeasuredRates:
    """Rates from a JSON file: {model or model/phase: {node type: [requests/s per class]}}."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError where the file cannot be read or is not of that form."""
        try:
            self._rates = msgspec.json.decode(
                path.read_bytes(), type=dict[str, dict[str, list[float]]], strict=False
            )
        except OSError as error:
            raise UsageError(f"cannot read the bucket rates in {path}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{path} is no table of bucket rates: {error}",
                mend='write {"model": {"L40S x1": [requests/s of each class of its demand]}}',
            ) from error
        self._path = path

    def __call__(self, model: ModelSpec, phase: Phase, replica: Replica) -> list[float] | None:
        found = self._rates.get(f"{model.name}/{phase}", self._rates.get(model.name))
        if found is None:
            raise UsageError(
                f"{self._path} has no bucket rates of {model.name}, {phase}",
                mend="add them, or leave `rates` away to take them from the tables",
            )
        if sum(replica.nodes.values()) != 1:
            return None
        rates = found.get(str(next(iter(replica.nodes))))
        if rates is not None and len(rates) != len(model.demand.classes):
            raise UsageError(
                f"{self._path}: {model.name} has {len(model.demand.classes)} size classes, "
                f"{next(iter(replica.nodes))} has {len(rates)} rates"
            )
        return rates


def _tokens(one: RequestClass, phase: Phase) -> float:
    if phase == "prefill":
        return one.input_tokens
    return one.output_tokens if phase == "decode" else one.input_tokens + one.output_tokens


def _over(throughput: float, tokens: float) -> float:
    return throughput / tokens if tokens > 0 else float("inf")
