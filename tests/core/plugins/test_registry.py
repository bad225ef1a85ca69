from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from coral.core.plugins import Registry
from coral.core.plugins.listing import listing
from coral.errors import EngineError, PluginError
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component, EngineComponent
from coral.testing.stand_ins import PluginObject, StandInOptions, component, record, stand_in_registry
from coral.types.hardware import NodeType
from coral.types.stage import StageSpec

STAGE = StageSpec(
    instance="i",
    generation=0,
    node="n",
    stage=0,
    stages=1,
    first_layer=0,
    end_layer=1,
    layers_total=1,
    source="",
    model="m",
    engine="e",
    dtype="float32",
    node_type=NodeType("cpu", 1),
    devices=(0,),
    device_kind="cpu",
    threads=1,
    memory_bytes=1,
    max_model_len=1,
    max_step_tokens=1,
    max_step_requests=1,
)


def offering(*components: Any, hook: str = "coral_routers") -> object:
    """A plugin whose hook returns these."""

    def implementation() -> Any:
        return list(components)

    return PluginObject(**{hook: hookimpl(implementation)})


def registry_of(*plugins: object) -> Registry:
    registry = Registry()
    for i, plugin in enumerate(plugins):
        registry.add(plugin, record(f"plugin-{i}"))
    return registry


def test_build_validates_options() -> None:
    registry = stand_in_registry()
    assert registry.build("router", "least-load", {"regions": ["a"]}) == StandInOptions(regions=("a",))
    assert registry.build("router", "least-load") == StandInOptions()
    given = StandInOptions(regions=("b",))
    assert registry.build("router", "least-load", given) is given


def test_references_are_resolved_where_they_are_used() -> None:
    lazy = Component(
        name="lazy",
        summary="",
        options="coral.testing.stand_ins:StandInOptions",
        build="coral.testing.stand_ins:_same",
    )
    assert registry_of(offering(lazy)).build("router", "lazy") == StandInOptions()


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no_such_module_:build", "no_such_module_"),
        ("coral.testing.stand_ins:nothing", "nothing"),
        ("coral.testing.stand_ins", "module:attribute"),
        (":x", "module:attribute"),
    ],
)
def test_a_reference_that_leads_nowhere(reference: str, said: str) -> None:
    registry = registry_of(offering(replace(component("lost"), build=reference)))
    with pytest.raises(PluginError, match=said) as caught:
        registry.build("router", "lost", StandInOptions())
    assert "router 'lost'" in str(caught.value)


def test_what_a_builder_raises_is_named() -> None:
    def fails(error: Exception) -> Any:
        def build(options: Any) -> Any:
            raise error

        return build

    registry = registry_of(
        offering(
            replace(component("value"), build=fails(ValueError("bad"))),
            replace(
                component("module"), build=fails(ModuleNotFoundError("No module named 'zzz'", name="zzz"))
            ),
            replace(component("own"), build=fails(EngineError("my own words"))),
        )
    )
    with pytest.raises(PluginError, match="router 'value' cannot be built: ValueError: bad"):
        registry.build("router", "value")
    with pytest.raises(PluginError, match="pip install zzz"):
        registry.build("router", "module")
    with pytest.raises(EngineError, match="my own words"):
        registry.build("router", "own")


def test_unknown_names() -> None:
    registry = stand_in_registry()
    with pytest.raises(PluginError, match="did you mean least-load") as caught:
        registry.component("router", "least-laod")
    assert "pip install coral-router-least-laod" in str(caught.value)
    with pytest.raises(PluginError, match="installed: least-load, weighted-round-robin"):
        registry.component("router", "zzz")
    with pytest.raises(PluginError, match="no kind of plugin called 'wheel'"):
        registry.component("wheel", "zzz")


def test_a_name_offered_twice_names_both_and_spoils_no_other() -> None:
    registry = Registry()
    registry.add(offering(component("same"), component("a")), record("first", version="1.2"))
    registry.add(offering(component("same"), component("b")), record("second", version="3.4"))
    with pytest.raises(PluginError) as caught:
        registry.component("router", "same")
    assert "first 1.2" in str(caught.value)
    assert "second 3.4" in str(caught.value)
    assert registry.component("router", "a").name == "a"
    errors = {(row.name, row.distribution): row.error for row in listing(registry)}
    assert errors["same", "first"] == "the name is also offered by second 3.4"
    assert errors["a", "first"] is None


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (offering(replace(component("old"), api=0)), "'old' is made for API 0"),
        (offering("junk"), "returned a str where Component is expected"),
        (offering(component("e"), hook="coral_engines"), "where EngineComponent is expected"),
        (offering(replace(component(""), summary="x")), "without a name"),
        (offering(hook="coral_router"), "unknown hook coral_router (did you mean coral_routers?)"),
        (PluginObject(coral_routers=hookimpl(lambda: "junk")), "returned str, not a list"),
        (PluginObject(coral_routers=hookimpl(lambda: 1 / 0)), "coral_routers() failed: ZeroDivisionError"),
        (PluginObject(coral_plan_made=hookimpl(lambda plan, nonsense: None)), "nonsense"),
        (PluginObject(coral_routers=lambda: []), "has no hooks"),
        ({"coral_routers": 1}, "is no plugin"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_recorded_and_stops_nothing(plugin: object, said: str) -> None:
    registry = stand_in_registry()
    registry.add(plugin, record("broken"))
    assert registry.records[-1].error is not None
    assert said in registry.records[-1].error
    assert registry.component("router", "least-load").name == "least-load"
    assert any(row.error and said in row.error for row in listing(registry))


def test_the_same_module_twice_is_recorded_and_the_first_stays() -> None:
    registry, plugin = Registry(), offering(component("a"))
    registry.add(plugin, record("first", origin="module"))
    registry.add(plugin, record("second", origin="module"))
    registry.add(plugin, record("third", origin="other-name"))
    assert [bool(one.error) for one in registry.records] == [False, True, True]
    assert registry.component("router", "a").name == "a"
    assert registry.build("router", "a") == StandInOptions()


def test_the_sound_part_of_a_plugin_is_used() -> None:
    registry = registry_of(offering(component("good"), replace(component("old"), api=99)))
    assert registry.component("router", "good").name == "good"
    with pytest.raises(PluginError, match="router 'old'"):
        registry.component("router", "old")


def test_a_broken_plugin_is_an_error_only_where_it_is_used() -> None:
    registry = stand_in_registry()
    registry.reject(record("coral-router-mine"), "cannot be imported: ImportError: no")
    assert registry.component("router", "least-load")
    with pytest.raises(PluginError, match="cannot be used: cannot be imported: ImportError: no"):
        registry.component("router", "mine")


def test_the_worker_half_of_an_engine() -> None:
    loaded = EngineComponent(
        name="e", summary="", options=StandInOptions, build=str, load=lambda stage: ("loaded", stage.engine)
    )
    registry = registry_of(offering(loaded, hook="coral_engines"))
    assert registry.load_stage(STAGE) == ("loaded", "e")
