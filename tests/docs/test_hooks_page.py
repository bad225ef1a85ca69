"""Every hook and every argument is documented, and nothing that is not there."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coral.core.config import open_config
from coral.core.plugins.registry import SPECIFICATIONS
from coral.hookspecs.events import EventHooks
from coral.hookspecs.router import Candidate, RouteRequest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGE = (ROOT / "docs" / "hooks.md").read_text()
HOOKS: dict[str, Callable[..., Any]] = {
    name: function
    for owner in (*SPECIFICATIONS.values(), EventHooks)
    for name, function in vars(owner).items()
    if name.startswith("coral_")
}


def section(hook: str) -> str:
    found = re.search(rf"^### `{hook}\((.*?)\)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/hooks.md has no section `### `{hook}(…)``"
    return found.group(0)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_and_its_arguments_are_documented(hook: str) -> None:
    arguments = [name for name in inspect.signature(HOOKS[hook]).parameters if name != "self"]
    text = section(hook)
    assert text.startswith(f"### `{hook}({', '.join(arguments)})`\n")
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^- (.*?):", text, re.MULTILINE))))
    assert described == set(arguments)


def test_nothing_else_is_documented() -> None:
    assert set(re.findall(r"^### `(\w+)\(", PAGE, re.MULTILINE)) == set(HOOKS)


@pytest.mark.parametrize("kind", SPECIFICATIONS)
def test_every_kind_names_its_suite(kind: str) -> None:
    module, name = re.findall(r"`(coral\.testing\.\w+)\.(\w+Contract)`", section(f"coral_{kind}s"))[0]
    assert inspect.isclass(getattr(importlib.import_module(module), name))


def test_the_one_file_plugin_on_the_page_works_as_it_stands(tmp_path: Path) -> None:
    (text,) = [
        one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "beside the config" in one
    ]
    (section,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "least_busy.py").write_text(text)
    path = tmp_path / "coral.yaml"
    models = re.findall(r"```yaml\n(models:.*?)```", README.read_text(), re.DOTALL)[0]
    path.write_text(models + section)
    loaded = open_config(path, (), {})
    router = loaded.registry.build("router", loaded.config.router.use, loaded.config.router.options)
    busy, idle = Candidate(id="a", weight=1.0, running=2), Candidate(id="b", weight=1.0)
    request = RouteRequest(id="r", model="m", prompt_ids=(1,), max_tokens=1)
    assert router.pick(request, [busy, idle], 0.0) is idle


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(coral\.[a-z_.]+\.[A-Z]\w+)`", PAGE))))
def test_every_name_on_the_page_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)
