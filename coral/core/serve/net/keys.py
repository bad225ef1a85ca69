"""CURVE key pairs, and how a process is given its own: through its environment, never its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

import zmq

from coral.errors import ProtocolError

PLANE_KEY = "CORAL_PLANE_KEY"
COORDINATOR_KEY = "CORAL_COORDINATOR_KEY"
TICKET = "CORAL_TICKET"
Z85_CHARACTERS = 40


def fingerprint(public: str) -> str:
    """By which people know a public key: 12 hexadecimal digits."""
    return hashlib.sha256(public.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, both in Z85 (40 characters). What is printed of it is the public key alone."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def of_secret(cls, secret: str) -> KeyPair:
        """Raises ProtocolError where that is no secret key."""
        try:
            if len(secret) != Z85_CHARACTERS:
                raise ValueError
            return cls(zmq.curve_public(secret.encode()).decode(), secret)
        except (ValueError, zmq.ZMQError):
            raise ProtocolError("a secret key is damaged") from None


@dataclass(frozen=True, slots=True)
class ProcessKeys:
    """What a scheduler or worker on another machine holds: the key pair that all schedulers and workers of
    its model share, and the coordinator's public key. `ticket`: by which the coordinator tells a scheduler
    from the others of its model; workers have none."""

    plane: KeyPair
    coordinator: str
    ticket: str = field(default="", repr=False)

    def environment(self) -> dict[str, str]:
        """As its agent hands it over."""
        keys = {PLANE_KEY: self.plane.secret, COORDINATOR_KEY: self.coordinator}
        return {**keys, TICKET: self.ticket} if self.ticket else keys

    def of_worker(self) -> ProcessKeys:
        return replace(self, ticket="")

    @classmethod
    def taken(cls, environment: MutableMapping[str, str]) -> ProcessKeys | None:
        """What `environment` holds; it is taken out, so that no further process inherits it. None where
        there are no keys: everything of this process is on one machine, and goes by `ipc`.

        Raises ProtocolError where they are damaged.
        """
        secret = environment.pop(PLANE_KEY, "")
        coordinator = environment.pop(COORDINATOR_KEY, "")
        ticket = environment.pop(TICKET, "")
        return cls(KeyPair.of_secret(secret), coordinator, ticket) if secret else None
