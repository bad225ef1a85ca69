"""Events: any number of plugins listen; an exception is logged and counted, and stops nothing.

`coral_refuse_plan` is the one gate.
"""

from __future__ import annotations

from typing import Any

from coral.hookspecs import hookspec
from coral.types.plan import Plan


class EventHooks:
    @hookspec
    def coral_plan_made(self, plan: Plan, previous: Plan | None) -> None:
        """A plan was accepted and is about to be carried out. `previous` is None for the first."""

    @hookspec
    def coral_instance_changed(self, instance: str, model: str, before: str, after: str) -> None:
        """An instance went from one state of its life to another (`placed`, `loading`, `ready`,
        `draining`, `gone`, `failed`)."""

    @hookspec
    def coral_machine_lost(self, machine: str, reason: str) -> None:
        """A rented machine is gone without having been released."""

    @hookspec
    def coral_request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        """A request has left the system; `finish` is `stop`, `length`, `abort` or `error`."""

    @hookspec
    def coral_add_commands(self, app: Any) -> None:
        """Add commands to the `coral` program. `app` is its `typer.Typer`."""

    @hookspec(firstresult=True)
    def coral_refuse_plan(self, plan: Plan, previous: Plan | None) -> str | None:
        """A reason why this plan must not be carried out, or None. The first reason wins: the running
        plan stays, and the reason is shown."""
