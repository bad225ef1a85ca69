"""A join token as text: where the coordinator is, its public key, and a secret key that works once.

The secret is nowhere else: the coordinator keeps the public key that belongs to it, until it is used, has
expired, or is revoked.
"""

from __future__ import annotations

import base64
import binascii
import time

import msgspec
from msgspec import Struct

from coral.core.serve.net.keys import KeyPair
from coral.errors import ProtocolError, UsageError

MARK = "coral-join-1-"
"""With the version of the format."""


class Token(Struct, frozen=True, kw_only=True, array_like=True):
    """`address`: of the coordinator, host:port. Keys are Z85. `machine`: the name it is for; empty: any.
    `expires_s`: seconds since the epoch."""

    address: str
    server: str
    secret: str
    machine: str
    expires_s: float

    def __repr__(self) -> str:
        return f"Token(address={self.address!r}, machine={self.machine!r}, expires_s={self.expires_s!r})"

    def text(self) -> str:
        """One word of letters, digits, `-` and `_`: nothing in it means anything to a shell."""
        return MARK + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises UsageError where that is no token, or one that has expired."""
        text = text.strip()
        mend = "`coral keys token` prints one on the coordinator's machine"
        if not text.startswith(MARK):
            raise UsageError("that is no join token of this version of Coral", mend=mend)
        body = text.removeprefix(MARK)
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            token = msgspec.msgpack.decode(data, type=cls)
            KeyPair.of_secret(token.secret)
            if len(token.server) != len(token.secret):
                raise ProtocolError("its server key is damaged")
        except (binascii.Error, ValueError, msgspec.DecodeError, ProtocolError):
            raise UsageError("the join token is damaged: was all of it copied?", mend=mend) from None
        if token.expires_s < time.time():
            raise UsageError("the join token has expired", mend=mend)
        return token
