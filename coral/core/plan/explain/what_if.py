"""`--what-if PATH=VALUE`: the planner's view with a price, a supply, a demand or an SLO changed.

::

    offers."aws/us-east-2:g6e.xlarge:on_demand".price=1.5        USD/h
    offers."aws/us-east-2:g6e.xlarge:on_demand".obtainable=8     machines that can be had
    models."qwen3-32b".demand=12                                 requests/s
    models."qwen3-32b".slo.prefill=2s                            also slo.decode
    models."qwen3-32b".max_gpus=8                                also max_cost (USD/h), null for no limit
    models."qwen3-32b".floor=0.5                                 also priority, survive_zone, survive_machine
    plan.budget=40                                               USD/h, null for none; also spot_share

An SLO changes which templates there are: whoever plans builds those of the models in `rebuilt` anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from coral.core.config.overrides import BadOverride, parse_set
from coral.core.plan.explain.fields import FIELDS
from coral.errors import UsageError
from coral.hookspecs.options import near_miss
from coral.hookspecs.planner import View
from coral.types.hardware import Offer
from coral.types.model import ModelSpec, Slo

MOST_SHOWN = 8
EXAMPLE = 'models."qwen3-32b".demand=12 or offers."aws/us-east-2:g6e.xlarge:on_demand".price=1.5'


class Change(Struct, frozen=True, kw_only=True):
    """One figure; durations are seconds, None is no limit."""

    path: str
    before: float | None
    after: float | None


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


def with_slo(view: View, name: str, slo: Slo) -> View:
    """A model's SLO changed; where it is no tighter, also that of what runs of it: it does what it did."""
    old = next(one.slo for one in view.models if one.name == name)
    looser = slo.prefill_s >= old.prefill_s and slo.decode_s >= old.decode_s
    running = tuple(
        replace(one, template=replace(one.template, slo=slo))
        if looser and one.template.model == name and one.template.slo == old
        else one
        for one in view.running
    )
    models = tuple(replace(spec, slo=slo) if spec.name == name else spec for spec in view.models)
    return replace(view, models=models, running=running)


def with_limit(view: View, name: str, limit: str, seconds: float) -> View:
    """`limit`: prefill or decode."""
    old = next(one.slo for one in view.models if one.name == name)
    changed = replace(old, prefill_s=seconds) if limit == "prefill" else replace(old, decode_s=seconds)
    return with_slo(view, name, changed)


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
    known = FIELDS[kind][field]
    value = known.read(given.value)
    path = f"{kind}.{field}" if kind == "plan" else f'{kind}."{name}".{field}'

    def change(of: Any) -> Change:
        return Change(path=path, before=known.now(of), after=value)

    if kind == "plan":
        return replace(view, options=known.put(view.options, value)), change(view.options)
    if kind == "offers":
        offer = next(one for one in view.offers if one.key == name)
        offers = tuple(known.put(one, value) if one is offer else one for one in view.offers)
        return replace(view, offers=offers), change(offer)
    spec = next(one for one in view.models if one.name == name)
    models = tuple(known.put(one, value) if one is spec else one for one in view.models)
    if field.startswith("slo."):
        return with_slo(view, name, known.put(spec, value).slo), change(spec)
    return replace(view, models=models), change(spec)


def _known(view: View, keys: Sequence[str]) -> tuple[str, str, str]:
    """(kind, name, field) of a path; a plan has no name. Raises ValueError with a near miss."""
    kind, rest = keys[0], keys[1:]
    if kind not in FIELDS:
        raise ValueError(f"there is no {kind!r}" + _meant(kind, FIELDS))
    if kind == "plan":
        name, field = "", ".".join(rest)
    else:
        names = [one.name for one in view.models] if kind == "models" else [one.key for one in view.offers]
        quoted = [f'{kind}."{name}"' for name in names]
        if not rest:
            raise ValueError(f"{kind} needs a name" + _meant("", quoted))
        name, field = rest[0], ".".join(rest[1:])
        if name not in names:
            bare = next((one for one in names if ".".join(rest).startswith(f"{one}.")), None)
            if bare is not None:
                raise ValueError(f'quote the name: {kind}."{bare}"')
            word = f'{kind}."{name}"'
            raise ValueError(f"there is no {word}" + _meant(word, quoted))
    if field not in FIELDS[kind]:
        where = kind if kind == "plan" else f'{kind}."{name}"'
        raise ValueError(f"{where} has no {field or 'value'}" + _meant(field, FIELDS[kind]))
    return kind, name, field


def _meant(word: str, known: Iterable[str]) -> str:
    close = near_miss(word, known)
    if close is not None:
        return f" (did you mean {close}?)"
    shown = list(known)
    more = f", … ({len(shown)} in all)" if len(shown) > MOST_SHOWN else ""
    return f"; there is {', '.join(shown[:MOST_SHOWN]) or 'none'}{more}"
