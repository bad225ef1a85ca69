from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coral.core.serve.joining.keyring import Keyring
from coral.errors import UsageError


def test_keys_are_made_once_and_kept_for_their_owner_alone(tmp_path: Path) -> None:
    ring = Keyring(tmp_path)
    assert Keyring(tmp_path).coordinator() == ring.coordinator()
    assert Keyring(tmp_path).plane("a/b") == ring.plane("a/b")
    assert len({ring.coordinator().public, ring.plane("a/b").public, ring.plane("a").public}) == 3
    files = list((tmp_path / "keys").iterdir())
    assert len(files) == 3
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_all_who_make_a_key_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(lambda _: Keyring(tmp_path).coordinator(), range(64)))
    assert len(found) == 1
    assert [file.name for file in (tmp_path / "keys").iterdir()] == ["coordinator"], (
        "nothing half made is left"
    )


def test_a_key_that_others_can_read_is_refused_with_the_mend(tmp_path: Path) -> None:
    Keyring(tmp_path).coordinator()
    (tmp_path / "keys" / "coordinator").chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others") as raised:
        Keyring(tmp_path).coordinator()
    assert "chmod 600" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40, b"~" * 40])
def test_a_damaged_key_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys" / "coordinator"
    file.parent.mkdir()
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UsageError, match="coordinator is damaged") as raised:
        Keyring(tmp_path).coordinator()
    assert "~~~" not in str(raised.value)


def test_a_place_where_none_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/none")):
        with pytest.raises(UsageError, match=r"the key .* cannot be used"):
            Keyring(place).coordinator()
