from __future__ import annotations

from pathlib import Path

import pytest

from coral.core.serve.joining.members import AGENT, Members
from coral.core.serve.joining.token import Token
from coral.core.serve.net.keys import KeyPair, fingerprint
from coral.core.serve.store import keys
from coral.core.serve.store.database import FILE, Store
from coral.errors import UsageError


def test_a_token_is_kept_by_its_public_key_alone(tmp_path: Path) -> None:
    members = Members(tmp_path)
    token = members.invite("host:7000", "gpu-1", now_s=100.0, valid_s=60.0)
    assert token.server == members.server_key()
    (kept,) = members.tokens(now_s=101.0)
    assert (kept.name, kept.expires_s) == ("gpu-1", 160.0)
    assert kept.public_key == KeyPair.of_secret(token.secret).public
    assert token.secret.encode() not in b"".join(f.read_bytes() for f in tmp_path.glob("coral.db*"))
    assert members.tokens(now_s=161.0) == []


def test_machines_and_tokens_are_revoked_by_name_or_fingerprint(tmp_path: Path) -> None:
    members = Members(tmp_path)
    store = Store(tmp_path / FILE)
    public = [KeyPair.new().public for _ in range(3)]
    for name, key in zip(("gpu-1", "gpu-2", "gpu-3"), public, strict=True):
        keys.allow(store, key, kind=AGENT, name=name, now_s=1.0)
    keys.allow(store, KeyPair.new().public, kind="other", name="gpu-9", now_s=1.0)
    anyones: Token = members.invite("host:7000", "", now_s=1.0, valid_s=60.0)
    members.invite("host:7000", "gpu-2", now_s=1.0, valid_s=60.0)
    assert members.revoke("gpu-2", now_s=2.0) == ["machine gpu-2", "a token for gpu-2"]
    assert members.revoke(fingerprint(public[0]), now_s=2.0) == ["machine gpu-1"]
    assert [one.name for one in members.machines()] == ["gpu-3"]
    for unknown in ("gpu-2", "gpu-9", ""):
        with pytest.raises(UsageError):
            members.revoke(unknown, now_s=2.0)
    mark = fingerprint(KeyPair.of_secret(anyones.secret).public)
    assert members.revoke(mark, now_s=2.0) == ["a token for any machine"]
    assert members.tokens(now_s=2.0) == []
    store.close()
