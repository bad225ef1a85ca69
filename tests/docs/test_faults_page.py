"""docs/faults.md: every row names a test or a benchmark, and all of them exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| fault |"))
]
TESTS = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "plugins").glob("*/*/tests/test_*.py")]
DEFINED = {
    name for file in TESTS for name in re.findall(r"^\s*(?:async )?def (test_\w+)\(", file.read_text(), re.M)
}


def test_every_row_says_what_happens_and_what_shows_it() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(row) == 3, f"a cell too many or too few: {row}"
        assert all(row), row
        assert re.fullmatch(r"`[\w.]+`(, `[\w.]+`)*", row[2]), row[2]


def test_what_is_named_exists() -> None:
    named = [name for row in ROWS for name in re.findall(r"`([\w.]+)`", row[2])]
    missing = [
        name
        for name in named
        if name not in DEFINED and not (name.startswith("benchmarks.") and find_spec(name))
    ]
    assert missing == []


def test_a_fault_has_one_row() -> None:
    faults = [row[0] for row in ROWS]
    assert sorted(set(faults)) == sorted(faults)
