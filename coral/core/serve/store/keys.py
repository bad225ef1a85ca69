"""Who may speak to the coordinator: public keys of node agents, and join tokens that wait for theirs."""

from __future__ import annotations

from msgspec import Struct

from coral.core.serve.store.database import Store


class PeerKey(Struct, frozen=True, kw_only=True):
    """A public CURVE key (Z85) on the allow-list. `name` is the machine's."""

    public_key: str
    kind: str
    name: str
    since_s: float


class JoinToken(Struct, frozen=True, kw_only=True):
    """A token that was not used yet, by its public key (its secret is nowhere but with whom it was given).
    `name`: the machine that may join with it; empty: any."""

    public_key: str
    name: str
    expires_s: float


def allow(store: Store, public_key: str, *, kind: str, name: str, now_s: float) -> None:
    """Raises StoreError."""
    store.write(
        "INSERT OR REPLACE INTO peers (public_key, kind, name, since_s) VALUES (?, ?, ?, ?)",
        (public_key, kind, name, now_s),
    )


def forbid(store: Store, public_key: str) -> None:
    """Raises StoreError."""
    store.write("DELETE FROM peers WHERE public_key = ?", (public_key,))


def allowed(store: Store) -> list[PeerKey]:
    """Raises StoreError."""
    rows = store.read("SELECT public_key, kind, name, since_s FROM peers ORDER BY since_s")
    return [
        PeerKey(public_key=str(key), kind=str(kind), name=str(name), since_s=float(str(since)))
        for key, kind, name, since in rows
    ]


def add_token(store: Store, token: JoinToken, *, now_s: float) -> None:
    """Tokens that have expired go. Raises StoreError."""
    store.write("DELETE FROM join_tokens WHERE expires_s <= ?", (now_s,))
    store.write(
        "INSERT INTO join_tokens (public_key, name, made_s, expires_s) VALUES (?, ?, ?, ?)",
        (token.public_key, token.name, now_s, token.expires_s),
    )


def use_token(store: Store, public_key: str) -> None:
    """It is used, or revoked: nobody joins with it any more. Raises StoreError."""
    store.write("DELETE FROM join_tokens WHERE public_key = ?", (public_key,))


def tokens(store: Store, *, now_s: float) -> list[JoinToken]:
    """Those that are valid now. Raises StoreError."""
    rows = store.read(
        "SELECT public_key, name, expires_s FROM join_tokens WHERE expires_s > ? ORDER BY made_s", (now_s,)
    )
    return [
        JoinToken(public_key=str(key), name=str(name), expires_s=float(str(expires)))
        for key, name, expires in rows
    ]
