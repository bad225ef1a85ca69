"""Planner and coordinator."""

from __future__ import annotations

from typing import Any

from coral.core.serve.net.messages.base import Message


class PlannerHello(Message, frozen=True, kw_only=True, tag="planner-hello"):
    pid: int
    templates: int


class PlanAsk(Message, frozen=True, kw_only=True, tag="plan-ask"):
    """`view` is `coral.hookspecs.planner.View` as builtins (it is decoded by its own type)."""

    ask: int
    view: dict[str, Any]


class PlanAnswer(Message, frozen=True, kw_only=True, tag="plan-answer"):
    ask: int
    plan: dict[str, Any] | None = None
    error: str = ""
