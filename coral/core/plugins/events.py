"""Events, one typed method per hook: a listener that fails is logged and counted and stops nothing."""

from __future__ import annotations

import logging
from typing import Any

import pluggy

from coral.types.plan import Plan

log = logging.getLogger("coral.plugins")


class Events:
    """Calls every plugin's listener on its own, so that one's failure does not keep the others from
    being told. `failures` counts exceptions by (plugin, hook)."""

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self._manager = manager
        self._callers: dict[str, list[tuple[str, pluggy.HookCaller]]] = {}
        self.failures: dict[tuple[str, str], int] = {}

    def changed(self) -> None:
        """Plugins have come or gone."""
        self._callers.clear()

    def plan_made(self, plan: Plan, previous: Plan | None) -> None:
        self._tell("coral_plan_made", plan=plan, previous=previous)

    def instance_changed(self, instance: str, model: str, before: str, after: str) -> None:
        self._tell("coral_instance_changed", instance=instance, model=model, before=before, after=after)

    def machine_lost(self, machine: str, reason: str) -> None:
        self._tell("coral_machine_lost", machine=machine, reason=reason)

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        if not self._listeners("coral_request_finished"):
            return
        self._tell(
            "coral_request_finished",
            request=request,
            model=model,
            finish=finish,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seconds=seconds,
        )

    def add_commands(self, app: Any) -> None:
        self._tell("coral_add_commands", app=app)

    def refuse_plan(self, plan: Plan, previous: Plan | None) -> str | None:
        """The first reason a plugin gives, or None. A gate that fails is logged and counted, and refuses
        nothing: a broken plugin must not stop serving."""
        for plugin, caller in self._listeners("coral_refuse_plan"):
            try:
                reason = caller(plan=plan, previous=previous)
            except Exception:
                self._failed(plugin, "coral_refuse_plan")
                continue
            if reason is not None:
                return str(reason)
        return None

    def _tell(self, hook: str, **arguments: Any) -> None:
        for plugin, caller in self._listeners(hook):
            try:
                caller(**arguments)
            except Exception:
                self._failed(plugin, hook)

    def _failed(self, plugin: str, hook: str) -> None:
        self.failures[plugin, hook] = self.failures.get((plugin, hook), 0) + 1
        log.exception("plugin %s failed in %s", plugin, hook)

    def _listeners(self, hook: str) -> list[tuple[str, pluggy.HookCaller]]:
        if hook not in self._callers:
            plugins = self._manager.get_plugins()
            implementations = getattr(self._manager.hook, hook).get_hookimpls()
            self._callers[hook] = [
                (one.plugin_name, self._manager.subset_hook_caller(hook, plugins - {one.plugin}))
                for one in reversed(implementations)
            ]
        return self._callers[hook]
