"""What `coral plugins` shows: one row per component, one per plugin that offers nothing."""

from __future__ import annotations

from msgspec import Struct

from coral.core.plugins.registry import KINDS, Registry


class Row(Struct, frozen=True, kw_only=True):
    """`kind` is `events` for a plugin that only listens, and `-` for one that could not be loaded."""

    kind: str
    name: str
    distribution: str
    version: str
    summary: str
    error: str | None


def listing(registry: Registry) -> list[Row]:
    """Components by kind and name, then the plugins without any."""
    rows: list[Row] = []
    for kind in KINDS:
        for name, offerings in registry.of_kind(kind).items():
            for offering in offerings:
                others = [o.record.title for o in offerings if o is not offering]
                error = (
                    f"the name is also offered by {', '.join(others)}" if others else offering.record.error
                )
                rows.append(
                    Row(
                        kind=kind,
                        name=name,
                        distribution=offering.record.distribution,
                        version=offering.record.version,
                        summary=offering.component.summary,
                        error=error,
                    )
                )
    named = {(o.record.origin, o.record.distribution) for o in registry.offerings}
    rows += [
        Row(
            kind="-" if record.error else "events",
            name=record.name,
            distribution=record.distribution,
            version=record.version,
            summary="" if record.error else "listens to events",
            error=record.error,
        )
        for record in registry.records
        if (record.origin, record.distribution) not in named
    ]
    return rows
