from __future__ import annotations

import importlib.metadata
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from coral.core.plugins import load_plugins
from coral.core.plugins.listing import listing


def test_what_is_installed_is_found_and_whole() -> None:
    registry = load_plugins()
    assert {record.name: record.error for record in registry.records if record.error} == {}
    found = {(row.kind, row.name) for row in listing(registry)}
    assert {("planner", "coral"), ("profiler", "analytic"), ("executor", "processes")} <= found
    assert {("solver", "highs"), ("engine", "mock"), ("engine", "torch"), ("cloud", "local")} <= found


def test_every_component_that_is_installed_has_options_with_a_schema() -> None:
    registry = load_plugins()
    for offering in registry.offerings:
        model = registry.options_model(offering.kind, offering.component.name)
        assert model.model_json_schema()["type"] == "object", offering.component.name


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import no_such_module_", "ModuleNotFoundError: No module named 'no_such_module_'"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_distribution_that_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    (tmp_path / "coral_broken_one.py").write_text(body)
    info = tmp_path / "coral_broken-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coral-broken\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[coral]\nbroken = coral_broken_one\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = load_plugins()
    (record,) = [one for one in registry.records if one.error]
    assert (record.name, record.distribution, record.version) == ("broken", "coral-broken", "1.5")
    assert said in (record.error or "")
    assert registry.component("planner", "coral")


def test_files(tmp_path: Path) -> None:
    good = tmp_path / "good.py"
    good.write_text(
        "from coral.hookspecs import hookimpl\nfrom coral.hookspecs.component import Component\n"
        "@hookimpl\ndef coral_routers():\n"
        "    return [Component(name='mine', summary='', options=dict, build=dict)]\n"
    )
    bad = tmp_path / "bad.py"
    bad.write_text("import no_such_module_\n")
    registry = load_plugins([good, bad, tmp_path / "none.py"])
    assert registry.component("router", "mine").name == "mine"
    errors = {record.origin: record.error for record in registry.records if record.error}
    assert set(errors) == {str(bad), str(tmp_path / "none.py")}
    assert not [name for name in sys.modules if name.startswith("coral_file_bad")]


def test_two_files_of_one_name_are_two_plugins(tmp_path: Path) -> None:
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "plugin.py")
        paths[-1].write_text(
            "from coral.hookspecs import hookimpl\nfrom coral.hookspecs.component import Component\n"
            "@hookimpl\ndef coral_routers():\n"
            f"    return [Component(name='of-{folder}', summary='', options=dict, build=dict)]\n"
        )
    registry = load_plugins(paths)
    assert registry.component("router", "of-a")
    assert registry.component("router", "of-b")


def test_entry_points_are_read_from_the_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return []

    monkeypatch.setattr("coral.core.plugins.discovery.entry_points", points)
    assert load_plugins().records == []
    assert asked == ["coral"]
    assert importlib.metadata.entry_points(group="coral"), "the real ones are there"
