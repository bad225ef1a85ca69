"""Whose key is known: machines that have joined, models of ours, tokens that wait for their machine."""

from __future__ import annotations

import time
from collections.abc import Mapping

from coral.core.serve.joining.members import AGENT
from coral.core.serve.net.keys import Z85_CHARACTERS
from coral.core.serve.net.wire import Join
from coral.core.serve.store import keys
from coral.core.serve.store.database import Store
from coral.errors import StoreError

NAME_CHARACTERS = 200
WORTHLESS = "the token has been used, was revoked, or has expired"


class Guard:
    """`planes`: model by the public key that its schedulers and workers share.

    `may_dial` and `may_push` are called in the authenticator's thread, all else in the event loop.
    """

    def __init__(self, store: Store, planes: Mapping[str, str]) -> None:
        """Raises StoreError."""
        self._store = store
        self._planes = dict(planes)
        self._machines: dict[str, str] = {}
        self._tokens: dict[str, keys.JoinToken] = {}
        self._read()

    # ------------------------------------------------------------ whom the sockets let in

    def may_dial(self, key: str) -> bool:
        """Into the control socket."""
        return key in self._machines or key in self._planes or key in self._tokens

    def may_push(self, key: str) -> bool:
        """Into the token socket."""
        return key in self._planes

    # ------------------------------------------------------------ who it is

    def machine(self, key: str) -> str | None:
        """The machine whose key that is."""
        return self._machines.get(key)

    def model(self, key: str) -> str | None:
        return self._planes.get(key)

    def refresh(self) -> set[str]:
        """Look again at what `coral keys` may have changed; names of machines that are shut out now.

        Where the store cannot be read nothing changes.
        """
        before = self._machines
        try:
            self._read()
        except StoreError:
            return set()
        return set(before.values()) - set(self._machines.values())

    def join(self, key: str, asked: Join) -> str:
        """Whoever has shown the key of a token wants to be known by a key of its own: its name.

        Raises ValueError with the reason where it is not let in, StoreError where it cannot be kept.
        """
        token = self._tokens.get(key)
        if token is None:
            raise ValueError(WORTHLESS)
        name = token.name or asked.machine
        if not name or len(name) > NAME_CHARACTERS or not name.isprintable():
            raise ValueError("a machine needs a name: say it with --name")
        if asked.machine not in ("", name):
            raise ValueError(f"the token is for machine {name!r}, not for {asked.machine!r}")
        if len(asked.public_key) != Z85_CHARACTERS or self.may_dial(asked.public_key):
            raise ValueError("its key is no new public key")
        taken = [public for public, machine in self._machines.items() if machine == name]
        if taken and not token.name:
            raise ValueError(
                f"there is a machine {name!r} already: choose another name, or revoke that one first; "
                "a token that was made for that name takes its place"
            )
        with self._store.together():
            if key not in {one.public_key for one in keys.tokens(self._store, now_s=time.time())}:
                raise ValueError(WORTHLESS)
            for public in taken:
                keys.forbid(self._store, public)
            keys.allow(self._store, asked.public_key, kind=AGENT, name=name, now_s=time.time())
            keys.use_token(self._store, key)
        self._read()
        return name

    def _read(self) -> None:
        self._machines = {one.public_key: one.name for one in keys.allowed(self._store) if one.kind == AGENT}
        self._tokens = {one.public_key: one for one in keys.tokens(self._store, now_s=time.time())}
