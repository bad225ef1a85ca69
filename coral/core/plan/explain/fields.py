"""What `--what-if` may change, and how its values are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from coral.hookspecs.options import Duration
from coral.types.model import ModelSpec


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _least_0(value: Any) -> float:
    if _number(value) < 0:
        raise ValueError(f"{value!r} is negative")
    return _number(value)


def _positive(value: Any) -> float:
    if _number(value) <= 0:
        raise ValueError(f"{value!r} must be more than 0")
    return _number(value)


def _whole(value: Any) -> float:
    number = _least_0(value)
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return number


def _duration(value: Any) -> float:
    try:
        seconds = float(TypeAdapter(Duration).validate_python(value))
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{value!r} must be more than 0")
    return seconds


def _share(value: Any) -> float:
    if not 0 <= _number(value) <= 1:
        raise ValueError(f"{value!r} is no share between 0 and 1")
    return _number(value)


def _or_none(read: Callable[[Any], float]) -> Callable[[Any], float | None]:
    return lambda value: None if value is None else read(value)


class _Field(NamedTuple):
    """How a value is read, what it is now, and what it is set in."""

    read: Callable[[Any], float | None]
    now: Callable[[Any], float | None]
    put: Callable[[Any, Any], Any]


def _plain(read: Callable[[Any], float | None], name: str) -> _Field:
    return _Field(read, attrgetter(name), lambda of, value: replace(of, **{name: value}))


def _requests(spec: ModelSpec, value: float) -> ModelSpec:
    return replace(spec, demand=replace(spec.demand, requests_per_s=value))


FIELDS: dict[str, dict[str, _Field]] = {
    "offers": {
        "price": _plain(_least_0, "price_usd_h"),
        "obtainable": _Field(
            _whole, attrgetter("obtainable"), lambda offer, value: replace(offer, obtainable=int(value))
        ),
        "preemption": _plain(_least_0, "preemption_per_h"),
    },
    "models": {
        "demand": _Field(_least_0, attrgetter("demand.requests_per_s"), _requests),
        "slo.prefill": _Field(
            _duration,
            attrgetter("slo.prefill_s"),
            lambda spec, value: replace(spec, slo=replace(spec.slo, prefill_s=value)),
        ),
        "slo.decode": _Field(
            _duration,
            attrgetter("slo.decode_s"),
            lambda spec, value: replace(spec, slo=replace(spec.slo, decode_s=value)),
        ),
        "priority": _plain(_positive, "priority"),
        "floor": _plain(_share, "floor"),
        "max_gpus": _Field(
            _or_none(_whole),
            attrgetter("max_gpus"),
            lambda spec, value: replace(spec, max_gpus=None if value is None else int(value)),
        ),
        "max_cost": _plain(_or_none(_least_0), "max_cost_usd_h"),
        "survive_zone": _plain(_share, "survive_zone"),
        "survive_machine": _plain(_share, "survive_machine"),
    },
    "plan": {
        "budget": _plain(_or_none(_least_0), "budget_usd_h"),
        "spot_share": _plain(_share, "spot_share"),
    },
}
"""By kind and name."""
