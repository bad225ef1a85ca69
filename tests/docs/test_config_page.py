"""The reference page is what the schema says, and its examples load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coral.core.config.overrides import parse_set
from coral.core.config.reference import reference
from coral.core.plugins import Registry, load_plugins

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "config.md"


@pytest.fixture(scope="module")
def registry() -> Registry:
    """Core's and this repository's plugins, whatever else is installed."""
    registry = load_plugins()
    own = {"coral-llm", *(path.parent.name for path in ROOT.glob("plugins/*/*/pyproject.toml"))}
    names = {
        f"coral-{path.parent.parent.name[:-1]}-{path.parent.name}"
        for path in ROOT.glob("plugins/*/*/pyproject.toml")
    }
    own |= {name.replace("_", "-") for name in names}
    registry.offerings[:] = [one for one in registry.offerings if one.record.distribution in own]
    return registry


def test_the_page_is_what_the_schema_says(registry: Registry) -> None:
    assert PAGE.read_text() == reference(registry), "run: coral config reference > docs/config.md"


def test_every_plugin_of_this_repository_is_on_the_page() -> None:
    text = PAGE.read_text()
    for path in ROOT.glob("plugins/*/*/pyproject.toml"):
        kind, name = path.parent.parent.name[:-1], path.parent.name.replace("_", "-")
        assert f"### {kind} `{name}`" in text


def test_its_overrides_can_be_read() -> None:
    found = re.findall(r"`--set '?([^'`]*=[^'`]*)'?`", PAGE.read_text().replace("PATH=VALUE", ""))
    assert len(found) >= 3
    for text in found:
        assert parse_set(text).keys
