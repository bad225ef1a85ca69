"""What README and docs promise is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*/README.md")])
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_named_in_docs_exist(page: Path) -> None:
    named = set(re.findall(r"`make ([a-z]+)`|^\s*make ([a-z]+)\s*$", page.read_text(), re.MULTILINE))
    wanted = {target for pair in named for target in pair if target}
    assert wanted <= TARGETS, f"{page.name} names {wanted - TARGETS}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_local_links_and_paths_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_repository_paths_in_backticks_exist(page: Path) -> None:
    pattern = r"`((?:coral|docs|examples|plugins|tests|benchmarks)/[\w./-]+)`"
    missing = [path for path in re.findall(pattern, page.read_text()) if not (ROOT / path).exists()]
    assert not missing, missing
