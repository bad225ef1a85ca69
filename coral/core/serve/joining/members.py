"""Who may join and who has joined, as `coral keys` shows and changes it; beside a running coordinator too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coral.core.serve.joining.keyring import Keyring
from coral.core.serve.joining.token import Token
from coral.core.serve.net.keys import KeyPair, fingerprint
from coral.core.serve.store import keys
from coral.core.serve.store.database import FILE, Store
from coral.errors import UsageError

AGENT = "agent"
"""Kind of the keys of machines."""


class Members:
    """Of the deployment in the folder `state`. Raises StoreError where its store cannot be used."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def server_key(self) -> str:
        """The coordinator's public key (Z85); made where there is none yet. Raises UsageError."""
        return Keyring(self._state).coordinator().public

    def invite(self, address: str, machine: str, *, now_s: float, valid_s: float) -> Token:
        """A token that lets one machine join. `address`: where it reaches the coordinator, host:port;
        `machine`: the name it must have; empty: any that is free. Raises UsageError."""
        pair = KeyPair.new()
        token = Token(
            address=address,
            server=self.server_key(),
            secret=pair.secret,
            machine=machine,
            expires_s=now_s + valid_s,
        )
        with self._store() as store:
            kept = keys.JoinToken(public_key=pair.public, name=machine, expires_s=token.expires_s)
            keys.add_token(store, kept, now_s=now_s)
        return token

    def machines(self) -> list[keys.PeerKey]:
        with self._store() as store:
            return [one for one in keys.allowed(store) if one.kind == AGENT]

    def tokens(self, *, now_s: float) -> list[keys.JoinToken]:
        """Those that were not used and have not expired."""
        with self._store() as store:
            return keys.tokens(store, now_s=now_s)

    def revoke(self, named: str, *, now_s: float) -> list[str]:
        """A machine by its name, or a key or token by its fingerprint: what it was, in words.

        Raises UsageError where there is none.
        """
        done: list[str] = []
        if not named:  # tokens for any machine have no name
            raise UsageError("say which machine, key or token")
        with self._store() as store:
            for one in keys.allowed(store):
                if one.kind == AGENT and named in (one.name, fingerprint(one.public_key)):
                    keys.forbid(store, one.public_key)
                    done.append(f"machine {one.name}")
            for token in keys.tokens(store, now_s=now_s):
                if named in (token.name, fingerprint(token.public_key)):
                    keys.use_token(store, token.public_key)
                    done.append(f"a token for {token.name or 'any machine'}")
        if not done:
            raise UsageError(
                f"no machine, key or token is known as {named!r}", mend="`coral keys list` shows them"
            )
        return done

    @contextmanager
    def _store(self) -> Iterator[Store]:
        store = Store(self._state / FILE)
        try:
            yield store
        finally:
            store.close()
