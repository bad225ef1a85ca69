from __future__ import annotations

import logging
from typing import Any

import pytest

from coral.core.plugins import Registry
from coral.core.plugins.trace import trace_hooks, traced
from coral.hookspecs import hookimpl
from coral.testing.stand_ins import PluginObject, record, stand_in_registry
from coral.types.plan import Plan

PLAN = Plan(
    planner="p",
    machines=(),
    instances=(),
    services=(),
    price_usd_h=0.0,
    initialization_usd_h=0.0,
    certificate=None,
)


def listening(registry: Registry, name: str, **hooks: Any) -> None:
    plugin = PluginObject(**{hook: hookimpl(function) for hook, function in hooks.items()})
    registry.add(plugin, record(name))
    assert registry.records[-1].error is None, registry.records[-1].error


def test_everyone_is_told() -> None:
    registry, told = Registry(), list[Any]()
    listening(registry, "a", coral_plan_made=lambda plan, previous: told.append(("a", plan, previous)))
    listening(registry, "b", coral_plan_made=lambda plan: told.append(("b", plan)))
    registry.events.plan_made(PLAN, None)
    assert sorted(told, key=str) == sorted([("a", PLAN, None), ("b", PLAN)], key=str)


def test_every_event_has_a_method() -> None:
    registry, told = Registry(), list[Any]()
    listening(
        registry,
        "a",
        coral_instance_changed=lambda instance, model, before, after: told.append(
            (instance, model, before, after)
        ),
        coral_machine_lost=lambda machine, reason: told.append((machine, reason)),
        coral_request_finished=lambda request, model, finish, prompt_tokens, output_tokens, seconds: (
            told.append((request, model, finish, prompt_tokens, output_tokens, seconds))
        ),
        coral_add_commands=lambda app: told.append(app),
    )
    registry.events.instance_changed("i", "m", "placed", "loading")
    registry.events.machine_lost("m1", "gone")
    registry.events.request_finished("r", "m", "stop", 3, 4, 0.5)
    registry.events.add_commands("app")
    assert told == [("i", "m", "placed", "loading"), ("m1", "gone"), ("r", "m", "stop", 3, 4, 0.5), "app"]


def test_a_listener_that_fails_is_logged_and_counted_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, told = Registry(), list[str]()

    def fails(machine: str, reason: str) -> None:
        raise RuntimeError("out of ink")

    listening(registry, "before", coral_machine_lost=lambda machine: told.append("before"))
    listening(registry, "broken", coral_machine_lost=fails)
    listening(registry, "after", coral_machine_lost=lambda machine: told.append("after"))
    with caplog.at_level(logging.ERROR, "coral.plugins"):
        registry.events.machine_lost("m", "x")
        registry.events.machine_lost("m", "x")
    assert sorted(told) == ["after", "after", "before", "before"]
    assert registry.events.failures == {("broken", "coral_machine_lost"): 2}
    assert "out of ink" in caplog.text


def test_the_first_reason_refuses_a_plan(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    assert registry.events.refuse_plan(PLAN, None) is None
    listening(registry, "willing", coral_refuse_plan=lambda plan: None)
    assert registry.events.refuse_plan(PLAN, None) is None
    listening(registry, "unwilling", coral_refuse_plan=lambda plan, previous: "too dear")
    assert registry.events.refuse_plan(PLAN, None) == "too dear"
    listening(registry, "broken", coral_refuse_plan=lambda plan: 1 / 0)
    with caplog.at_level(logging.CRITICAL, "coral.plugins"):
        assert registry.events.refuse_plan(PLAN, PLAN) == "too dear"
    assert registry.events.failures == {("broken", "coral_refuse_plan"): 1}


def test_every_call_can_be_seen() -> None:
    registry, lines = Registry(), list[str]()
    end = trace_hooks(registry.manager, lines.append)
    listening(registry, "a", coral_machine_lost=lambda machine: None)
    lines.clear()
    registry.events.machine_lost("m1", "gone")
    assert lines == [
        "hook coral_machine_lost(machine='m1', reason='gone') -> a",
        "hook coral_machine_lost returned []",
    ]
    end()
    registry.events.machine_lost("m1", "gone")
    assert len(lines) == 2


def test_the_switch_shows_the_hooks_of_loading_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CORAL_TRACE_HOOKS", "1")
    stand_in_registry()
    shown = capsys.readouterr().err
    assert "hook coral_routers() -> stand-ins" in shown
    assert "hook coral_routers returned" in shown
    assert not traced({"CORAL_TRACE_HOOKS": "0"})
    assert not traced({})
