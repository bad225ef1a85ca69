"""Starts of templates that have failed: how often in a row, and until when none is started again."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from coral.core.operate.reconcile import template_key
from coral.types.placement import Template

BACK_OFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)


class Setback(Struct, kw_only=True):
    """Starts of one template that have failed in a row."""

    failures: int = 0
    until: float = 0.0
    reason: str = ""


class Setbacks:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all: dict[bytes, Setback] = {}

    def __len__(self) -> int:
        return len(self._all)

    def failed(self, template: Template, reason: str) -> Setback:
        """A start has failed: the next waits, longer each time."""
        setback = self._all.setdefault(template_key(template), Setback())
        setback.failures += 1
        setback.reason = reason
        setback.until = self._now() + BACK_OFF_S[min(setback.failures, len(BACK_OFF_S)) - 1]
        return setback

    def over(self, template: Template) -> None:
        """One has come up."""
        self._all.pop(template_key(template), None)

    def wait(self, template: Template) -> bool:
        """Whether none is to be started now."""
        setback = self._all.get(template_key(template))
        return setback is not None and setback.until > self._now()
