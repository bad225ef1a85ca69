"""A registry of stand-ins: every default name of the config is there, builds nothing, and has one option."""

from __future__ import annotations

from typing import Any

from coral.core.plugins import PluginRecord, Registry
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component, EngineComponent
from coral.hookspecs.options import Options, Secret


class StandInOptions(Options):
    """What tests set."""

    regions: tuple[str, ...] = ()
    token: Secret | None = None


def component(name: str) -> Component:
    return Component(
        name=name, summary=f"stand-in {name}", options=StandInOptions, build=lambda options: options
    )


class PluginObject:
    """A plugin of whatever attributes it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class StandIns:
    """A plugin object."""

    @hookimpl
    def coral_solvers(self) -> list[Component]:
        return [component("highs")]

    @hookimpl
    def coral_engines(self) -> list[EngineComponent]:
        return [
            EngineComponent(
                name=name, summary=f"stand-in {name}", options=StandInOptions, build=_same, load=_same
            )
            for name in ("torch", "mock")
        ]

    @hookimpl
    def coral_clouds(self) -> list[Component]:
        return [component("local"), component("aws")]

    @hookimpl
    def coral_routers(self) -> list[Component]:
        return [component("weighted-round-robin"), component("least-load")]

    @hookimpl
    def coral_profilers(self) -> list[Component]:
        return [component("analytic")]

    @hookimpl
    def coral_planners(self) -> list[Component]:
        return [component("coral")]

    @hookimpl
    def coral_executors(self) -> list[Component]:
        return [component("processes")]


def _same(given: Any) -> Any:
    return given


def record(name: str = "stand-ins", *, origin: str | None = None, version: str = "1.0") -> PluginRecord:
    return PluginRecord(name=name, distribution=name, version=version, origin=origin or name)


def stand_in_registry() -> Registry:
    registry = Registry()
    registry.add(StandIns(), record())
    return registry
