"""`--what-if PATH=VALUE`: the planner's view with a price, a supply, a demand or an SLO changed.

::

    offers."aws/us-east-2:g6e.xlarge:on_demand".price=1.5        USD/h
    offers."aws/us-east-2:g6e.xlarge:on_demand".obtainable=8     machines that can be had
    models."qwen3-32b".demand=12                                 requests/s
    models."qwen3-32b".slo.prefill=2s                            also slo.decode
    models."qwen3-32b".priority=2

An SLO changes which templates there are: whoever plans builds those of the models in `rebuilt` anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from coral.core.config.overrides import BadOverride, parse_set
from coral.errors import UsageError
from coral.hookspecs.options import Duration, near_miss
from coral.hookspecs.planner import View
from coral.types.hardware import Offer
from coral.types.model import ModelSpec

MOST_SHOWN = 8
EXAMPLE = 'models."qwen3-32b".demand=12 or offers."aws/us-east-2:g6e.xlarge:on_demand".price=1.5'


class Change(Struct, frozen=True, kw_only=True):
    """One figure; durations are seconds."""

    path: str
    before: float
    after: float


class WhatIf(Struct, frozen=True, kw_only=True):
    """`rebuilt`: names of the models whose SLO changed, so that their templates do."""

    view: View
    changes: tuple[Change, ...]
    rebuilt: tuple[str, ...]


def what_if(view: View, texts: Sequence[str]) -> WhatIf:
    """The view with all changes, in their order. Raises UsageError that lists all that cannot be taken."""
    faults: list[str] = []
    found: list[Change] = []
    rebuilt: list[str] = []
    for text in texts:
        try:
            view, change = _changed(view, text)
        except (BadOverride, ValueError) as error:
            faults.append(f"--what-if {text}: {error}")
            continue
        found.append(change)
        if ".slo." in change.path:
            rebuilt.append(parse_set(text).keys[1])
    if faults:
        raise UsageError(
            "\n  ".join(["a what-if cannot be taken", *faults]), mend=f"expected for example {EXAMPLE}"
        )
    return WhatIf(view=view, changes=tuple(found), rebuilt=tuple(dict.fromkeys(rebuilt)))


def offer_path(offer: Offer, field: str) -> str:
    return f'offers."{offer.key}".{field}'


def model_path(model: ModelSpec, field: str) -> str:
    return f'models."{model.name}".{field}'


def with_slo(view: View, name: str, *, prefill_s: float | None = None, decode_s: float | None = None) -> View:
    """A model's SLO changed, also that of what runs of it: it does what it did."""

    def moved(spec: ModelSpec) -> ModelSpec:
        prefill = spec.slo.prefill_s if prefill_s is None else prefill_s
        decode = spec.slo.decode_s if decode_s is None else decode_s
        return replace(spec, slo=replace(spec.slo, prefill_s=prefill, decode_s=decode))

    models = tuple(moved(spec) if spec.name == name else spec for spec in view.models)
    slos = {spec.name: (old.slo, spec.slo) for old, spec in zip(view.models, models, strict=True)}
    running = tuple(
        replace(one, template=replace(one.template, slo=slos[name][1]))
        if one.template.model == name
        and one.template.slo == slos[name][0]
        and slos[name][1].prefill_s >= slos[name][0].prefill_s
        and slos[name][1].decode_s >= slos[name][0].decode_s
        else one
        for one in view.running
    )
    return replace(view, models=models, running=running)


def with_demand(view: View, name: str, requests_per_s: float) -> View:
    models = tuple(
        replace(spec, demand=replace(spec.demand, requests_per_s=requests_per_s))
        if spec.name == name
        else spec
        for spec in view.models
    )
    return replace(view, models=models)


def with_offer(view: View, key: str, **fields: Any) -> View:
    """The offer of that key with other fields (`price_usd_h`, `obtainable`)."""
    offers = tuple(replace(one, **fields) if one.key == key else one for one in view.offers)
    return replace(view, offers=offers)


def _changed(view: View, text: str) -> tuple[View, Change]:
    given = parse_set(text)
    kind, name, field = _known(view, given.keys)
    number = FIELDS[kind][field](given.value)
    change = Change(path=_path((kind, name, field)), before=_now(view, kind, name, field), after=number)
    if kind == "offers":
        fields = {"price_usd_h": number} if field == "price" else {"obtainable": int(number)}
        return with_offer(view, name, **fields), change
    if field == "demand":
        return with_demand(view, name, number), change
    if field == "priority":
        models = tuple(replace(m, priority=number) if m.name == name else m for m in view.models)
        return replace(view, models=models), change
    slo = {"prefill_s": number} if field == "slo.prefill" else {"decode_s": number}
    return with_slo(view, name, **slo), change


def _now(view: View, kind: str, name: str, field: str) -> float:
    if kind == "offers":
        offer = next(one for one in view.offers if one.key == name)
        return offer.price_usd_h if field == "price" else offer.obtainable
    spec = next(one for one in view.models if one.name == name)
    return {
        "demand": spec.demand.requests_per_s,
        "slo.prefill": spec.slo.prefill_s,
        "slo.decode": spec.slo.decode_s,
        "priority": spec.priority,
    }[field]


def _known(view: View, keys: Sequence[str]) -> tuple[str, str, str]:
    """(kind, name, field) of a path. Raises ValueError with a near miss."""
    names = {"models": [one.name for one in view.models], "offers": [one.key for one in view.offers]}
    kind, rest = keys[0], keys[1:]
    if kind not in names:
        raise ValueError(f"there is no {kind!r}" + _meant(kind, names))
    if not rest:
        raise ValueError(f"{kind} needs a name" + _meant("", [f'{kind}."{name}"' for name in names[kind]]))
    if rest[0] not in names[kind]:
        bare = next((name for name in names[kind] if ".".join(rest).startswith(f"{name}.")), None)
        if bare is not None:
            raise ValueError(f'quote the name: {kind}."{bare}"')
        quoted = [f'{kind}."{name}"' for name in names[kind]]
        word = f'{kind}."{rest[0]}"'
        raise ValueError(f"there is no {word}" + _meant(word, quoted))
    field = ".".join(rest[1:])
    if field not in FIELDS[kind]:
        raise ValueError(f"{_path(keys[:2])} has no {field or 'value'}" + _meant(field, FIELDS[kind]))
    return kind, rest[0], field


def _meant(word: str, known: Iterable[str]) -> str:
    close = near_miss(word, known)
    if close is not None:
        return f" (did you mean {close}?)"
    shown = list(known)
    more = f", … ({len(shown)} in all)" if len(shown) > MOST_SHOWN else ""
    return f"; there is {', '.join(shown[:MOST_SHOWN]) or 'none'}{more}"


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


def _path(keys: Sequence[str]) -> str:
    """`models."qwen3-32b".slo.decode`."""
    return f'{keys[0]}."{keys[1]}"' + "".join(f".{key}" for key in keys[2:])


FIELDS: dict[str, dict[str, Callable[[Any], float]]] = {
    "offers": {"price": _least_0, "obtainable": _whole},
    "models": {"demand": _least_0, "slo.prefill": _duration, "slo.decode": _duration, "priority": _positive},
}
"""What may be changed, and how its value is read."""
