"""The coordinator as other machines see it: TCP sockets with CURVE, and who may speak there.

It is there only where `serve.listen` is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import zmq

from coral.core.config import Config
from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.tokens import TokenSocket
from coral.core.serve.joining.guard import Guard
from coral.core.serve.joining.keyring import Keyring
from coral.core.serve.net.curve import Authenticator, CurveServer
from coral.core.serve.net.keys import ProcessKeys, fingerprint
from coral.core.serve.net.wire import PROTOCOL, Join, Joined, JoinRefused, Message
from coral.core.serve.store.database import Store
from coral.errors import CoralError, StoreError

CONTROL = "control"
TOKENS = "tokens"
"""Domains of the authenticator."""


class Network:
    """`listen` and `advertise`: host:port of the control socket; the token socket has the port after it."""

    def __init__(
        self,
        listen: str,
        advertise: str,
        state: Path,
        store: Store,
        models: Iterable[str],
        journal: Journal,
        *,
        grace_s: float,
    ) -> None:
        ring = Keyring(state)
        self._listen = listen
        self._own = ring.coordinator()
        self._planes = {model: ring.plane(model) for model in models}
        self._guard = Guard(store, {pair.public: model for model, pair in self._planes.items()})
        self._journal = journal
        self._grace_s = grace_s
        self._authenticator: Authenticator | None = None
        self._other: set[str] = set()
        self.control_address = f"tcp://{advertise}"
        self.tokens_address = f"tcp://{_next(advertise)}"

    def open(self, context: zmq.Context[zmq.Socket[bytes]], control: Control, tokens: TokenSocket) -> None:
        """Raises CoralError where the addresses cannot be bound; then nothing is open."""
        guard = self._guard
        self._authenticator = Authenticator(context, {CONTROL: guard.may_dial, TOKENS: guard.may_push})
        try:
            control.listen(f"tcp://{self._listen}", CurveServer(self._own, CONTROL))
            server = CurveServer(self._own, TOKENS)
            tokens.listen(f"tcp://{_next(self._listen)}", server, self.tokens_address)
        except zmq.ZMQError as error:
            raise CoralError(
                f"serve.listen: {self._listen} and the port after it cannot be had: {error.strerror}",
                mend="choose an address of this machine, and ports that are free",
            ) from error
        key = fingerprint(self._own.public)
        self._journal.say("machine", f"machines join at {self.control_address} (key {key})")

    def close(self) -> None:
        """After the sockets."""
        if self._authenticator is not None:
            self._authenticator.close()

    # ------------------------------------------------------------ who it is

    def machine_of(self, peer: Peer) -> str | None:
        return self._guard.machine(peer.user)

    def model_of(self, user: str) -> str | None:
        return self._guard.model(user)

    def shut_out(self) -> set[str]:
        """Machines whose key has been revoked since this was last asked."""
        return self._guard.refresh()

    def joins(self, peer: Peer, asked: Join) -> Message:
        """The answer to a machine that shows a token."""
        try:
            name = self._guard.join(peer.user, asked)
        except (ValueError, StoreError) as error:
            self._journal.say("machine", f"somebody with a join token is refused: {error}", fault=True)
            return JoinRefused(reason=str(error))
        self._journal.say("machine", f"{name} has a key from now on: {fingerprint(asked.public_key)}")
        return self.welcome(name)

    def welcome(self, machine: str) -> Joined:
        return Joined(machine=machine, grace_s=self._grace_s)

    def other_protocol(self, peer: Peer, version: int) -> None:
        """Somebody whose key is known speaks a protocol that is not ours: said once."""
        if not peer.user or peer.user in self._other:
            return
        self._other.add(peer.user)
        who = self.machine_of(peer) or f"a process of {self.model_of(peer.user) or 'a machine that joins'}"
        self._journal.say(
            "machine",
            f"{who} speaks protocol {version}, this coordinator {PROTOCOL}: "
            "install the same version of Coral on both",
            fault=True,
        )

    # ------------------------------------------------------------ what its processes are given

    def keys(self, model: str, instance: str, generation: int) -> ProcessKeys:
        """For the scheduler of an instance; its workers get them without the ticket."""
        return ProcessKeys(
            plane=self._planes[model],
            coordinator=self._own.public,
            ticket=self.ticket(instance, generation),
        )

    def ticket(self, instance: str, generation: int) -> str:
        """By which the scheduler of an instance is told from others of its model, also after a restart."""
        said = f"{generation}:{instance}".encode()
        return hashlib.blake2b(said, key=self._own.secret.encode(), digest_size=16).hexdigest()


def network_of(config: Config, store: Store | None, journal: Journal) -> Network | None:
    """As the config says; None where nothing is to listen (or nothing is remembered: a dry run).

    Raises UsageError where a key cannot be had, StoreError.
    """
    serve = config.serve
    if serve.listen is None or store is None:
        return None
    return Network(
        serve.listen,
        serve.machines_address or serve.listen,
        Path(config.state.folder),
        store,
        [model.name for model in config.models],
        journal,
        grace_s=serve.grace,
    )


def _next(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
