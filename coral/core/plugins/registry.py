"""What the loaded plugins offer: choose a component by kind and name, build it, name what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import pluggy
from msgspec import Struct

from coral.core.plugins.events import Events
from coral.core.plugins.lazy import resolve
from coral.core.plugins.trace import trace_hooks, traced
from coral.errors import CoralError, PluginError
from coral.hookspecs import API_VERSION, PROJECT
from coral.hookspecs.cloud import CloudHooks
from coral.hookspecs.component import Component, EngineComponent
from coral.hookspecs.engine import EngineHooks
from coral.hookspecs.events import EventHooks
from coral.hookspecs.executor import ExecutorHooks
from coral.hookspecs.planner import PlannerHooks
from coral.hookspecs.profiler import ProfilerHooks
from coral.hookspecs.router import RouterHooks
from coral.hookspecs.solver import SolverHooks
from coral.hookspecs.workload import WorkloadHooks

SPECIFICATIONS: dict[str, type] = {
    "solver": SolverHooks,
    "engine": EngineHooks,
    "cloud": CloudHooks,
    "router": RouterHooks,
    "profiler": ProfilerHooks,
    "planner": PlannerHooks,
    "workload": WorkloadHooks,
    "executor": ExecutorHooks,
}
KINDS = tuple(SPECIFICATIONS)


class PluginRecord(Struct, frozen=True, kw_only=True):
    """A plugin that was found. `error` says why it, or a part of it, cannot be used."""

    name: str
    distribution: str
    version: str
    origin: str
    """The entry point's value, or the file's path."""
    error: str | None = None

    @property
    def title(self) -> str:
        return f"{self.distribution} {self.version}".strip()


class Offering(Struct, frozen=True, kw_only=True):
    """A component, and the plugin that offers it."""

    kind: str
    component: Component
    record: PluginRecord


class Registry:
    """Plugins of one process. There is no global one: whoever needs it is given it."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        for specification in (*SPECIFICATIONS.values(), EventHooks):
            self.manager.add_hookspecs(specification)
        if traced():
            trace_hooks(self.manager)
        self.events = Events(self.manager)
        self.records: list[PluginRecord] = []
        self.offerings: list[Offering] = []

    def add(self, plugin: object, record: PluginRecord) -> None:
        """Register a plugin and ask what it offers. What is wrong with it is recorded, not raised."""
        problems = self._register(plugin, record)
        found = [] if problems else self._offered(plugin, problems)
        record = _with_error(record, problems)
        self.records.append(record)
        self.offerings += [
            Offering(kind=kind, component=component, record=record) for kind, component in found
        ]

    def reject(self, record: PluginRecord, error: str) -> None:
        """Record a plugin that could not even be loaded."""
        self.records.append(_with_error(record, [error]))

    def _register(self, plugin: object, record: PluginRecord) -> list[str]:
        if self.manager.has_plugin(record.origin):
            return [f"{record.origin} is loaded already"]
        try:
            hash(plugin)  # the manager keeps plugins in sets
            self.manager.register(plugin, name=record.origin)
        except Exception as error:  # it looks at every attribute, and those are the plugin's own
            if self.manager.has_plugin(record.origin):
                self.manager.unregister(name=record.origin)
            return [f"is no plugin for this version of Coral: {error}"]
        callers = self.manager.get_hookcallers(plugin) or []
        known = [f"coral_{kind}s" for kind in KINDS] + [n for n in vars(EventHooks) if n.startswith("coral_")]
        unknown = [caller.name for caller in callers if not caller.has_spec()]
        problems = []
        for name in unknown:
            close = difflib.get_close_matches(name, known, n=1)
            problems.append(f"unknown hook {name}" + (f" (did you mean {close[0]}?)" if close else ""))
        if not callers:
            problems.append("has no hooks (functions marked @hookimpl from coral.hookspecs)")
        if problems:
            self.manager.unregister(plugin)
        self.events.changed()
        return problems

    def _offered(self, plugin: object, problems: list[str]) -> list[tuple[str, Component]]:
        others = [p for p in self.manager.get_plugins() if p is not plugin]
        found: list[tuple[str, Component]] = []
        for kind in KINDS:
            hook = f"coral_{kind}s"
            try:
                results = self.manager.subset_hook_caller(hook, remove_plugins=others)()
            except Exception as error:
                problems.append(f"{hook}() failed: {type(error).__name__}: {error}")
                continue
            for result in results:
                if not isinstance(result, list | tuple):
                    problems.append(f"{hook}() returned {type(result).__name__}, not a list of components")
                    continue
                for component in result:
                    fault = _component_fault(kind, component)
                    if fault:
                        problems.append(f"{hook}(): {fault}")
                    else:
                        found.append((kind, component))
        return found

    def of_kind(self, kind: str) -> dict[str, list[Offering]]:
        """Offerings of a kind by name; more than one of a name is a conflict."""
        if kind not in SPECIFICATIONS:
            raise PluginError(
                f"there is no kind of plugin called {kind!r}", mend=f"kinds: {', '.join(KINDS)}"
            )
        named: dict[str, list[Offering]] = {}
        for offering in self.offerings:
            if offering.kind == kind:
                named.setdefault(offering.component.name, []).append(offering)
        return dict(sorted(named.items()))

    def component(self, kind: str, name: str) -> Component:
        """The one component of that kind and name, else PluginError with what mends it."""
        return self.offering(kind, name).component

    def offering(self, kind: str, name: str) -> Offering:
        """That component with the plugin that offers it, else PluginError as above."""
        named = self.of_kind(kind)
        offered = named.get(name, [])
        if len(offered) > 1:
            both = " and ".join(f"{o.record.title} ({o.record.origin})" for o in offered)
            raise PluginError(f"{kind} {name!r} is offered by {both}", mend="uninstall all but one of them")
        if offered:
            return offered[0]
        raise self._missing(kind, name, list(named))

    def _missing(self, kind: str, name: str, installed: Sequence[str]) -> PluginError:
        distribution = f"coral-{kind}-{name.replace('_', '-')}"
        for record in self.records:
            suspect = record.distribution == distribution or record.name in (
                name,
                f"{kind}-{name}",
                f"{kind}_{name}",
            )
            if record.error and suspect:
                return PluginError(f"{kind} {name!r}: plugin {record.title} cannot be used: {record.error}")
        close = difflib.get_close_matches(name, installed, n=1)
        if close:
            return PluginError(
                f"unknown {kind} {name!r}, did you mean {close[0]}?", mend=f"else pip install {distribution}"
            )
        has = f"; installed: {', '.join(installed)}" if installed else ""
        return PluginError(f"unknown {kind} {name!r}{has}", mend=f"pip install {distribution}")

    def options_model(self, kind: str, name: str) -> Any:
        """The component's pydantic model of options (a class)."""
        return resolve(self.component(kind, name).options, f"{kind} {name!r}")

    def build(self, kind: str, name: str, options: Any = None) -> Any:
        """Build the thing itself: a Solver, an Engine, … `options` is the component's validated model,
        a mapping to be validated by it, or None for its defaults."""
        component = self.component(kind, name)
        if options is None or isinstance(options, Mapping):
            options = self.options_model(kind, name).model_validate(dict(options or {}))
        return _call(component.build, options, f"{kind} {name!r}")

    def load_stage(self, stage: Any) -> Any:
        """The worker's half of an engine: load a `StageSpec`, return its `StageRunner`."""
        component = self.component("engine", stage.engine)
        assert isinstance(component, EngineComponent)  # checked when it was offered
        return _call(component.load, stage, f"engine {stage.engine!r}")


def _call(builder: Any, argument: Any, owner: str) -> Any:
    function = resolve(builder, owner)
    try:
        return function(argument)
    except CoralError:
        raise
    except ModuleNotFoundError as error:
        raise PluginError(
            f"{owner} needs a module that is not installed: {error.name}", mend=f"pip install {error.name}"
        ) from error
    except Exception as error:
        raise PluginError(f"{owner} cannot be built: {type(error).__name__}: {error}") from error


def _component_fault(kind: str, component: object) -> str | None:
    expected = EngineComponent if kind == "engine" else Component
    if not isinstance(component, expected):
        return f"returned a {type(component).__name__} where {expected.__name__} is expected"
    if component.api != API_VERSION:
        return f"{kind} {component.name!r} is made for API {component.api}, this is {API_VERSION}"
    if not isinstance(component.name, str) or not component.name:
        return f"a {kind} without a name"
    return None


def _with_error(record: PluginRecord, problems: Sequence[str]) -> PluginRecord:
    return PluginRecord(
        name=record.name,
        distribution=record.distribution,
        version=record.version,
        origin=record.origin,
        error="; ".join(problems) or None,
    )
