"""Every example config, and every config shown in the docs, is one that Coral takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coral.cli.main import COMMANDS
from coral.core.config import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("plugins/*/*/README.md"))]
SNIPPETS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
    if "models:" in text
]


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda p: p.name)
def test_example_configs_have_no_faults(path: Path) -> None:
    assert load_config(path).models


@pytest.mark.parametrize("text", SNIPPETS)
def test_whole_configs_in_the_docs_have_no_faults(text: str, tmp_path: Path) -> None:
    path = tmp_path / "coral.yaml"
    path.write_text(text)
    assert load_config(path).models


def commands(text: str) -> set[str]:
    """First words after `coral` in shell blocks and back-ticked commands."""
    shell = "\n".join(re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, re.DOTALL))
    found = re.findall(r"^\s*\$?\s*coral ([a-z]+)", shell, re.MULTILINE)
    return {*found, *re.findall(r"`coral ([a-z]+)", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_named_in_the_docs_exist(page: Path) -> None:
    assert commands(page.read_text()) <= {entry.name for entry in COMMANDS}


def test_the_readme_names_every_command() -> None:
    assert {entry.name for entry in COMMANDS} <= commands((ROOT / "README.md").read_text())
