"""A file nested deeper than any reader goes is a damaged file, and told as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from coral.core.generate.manifest import read_manifest
from coral.core.generate.store import stored_entry
from coral.core.plan.document import read_document
from coral.core.profile.records import read_records
from coral.core.profile.shape import read_shape
from coral.errors import CoralError

NESTED = '{"format": ' + "[" * 200_000
READERS: tuple[tuple[str, Callable[[Path], object]], ...] = (
    ("manifest.json", lambda path: read_manifest(path.parent)),
    ("plan.json", read_document),
    ("records.json", lambda path: read_records([path])),
    ("config.json", lambda path: read_shape(path.parent)),
)


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
def test_it_is_named(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / name
    path.write_text(NESTED)
    with pytest.raises(CoralError, match=name):
        read(path)


def test_an_entry_of_the_store_is_built_anew(tmp_path: Path) -> None:
    (tmp_path / "abc.json").write_text(NESTED)
    assert stored_entry(tmp_path, "abc") is None
