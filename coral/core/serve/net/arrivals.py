"""The receiving ends of paths, by the peer that opened them; payloads meet their headers here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coral.core.serve.net.messages.data import Rows
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.paths import Paths, ReceivePath
from coral.types.stage import Buffer

MOST = 256
"""Paths at once; beyond it goes the one that was used least recently. Nodes of other instances come and go
without a word."""
LINK = "#"
"""Between a node's name and the number of its link (`kv_links`): a later link replaces an earlier."""


class Arrivals:
    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._of: dict[str, ReceivePath[Rows | Kv]] = {}
        """The one that was used least recently comes first."""

    def open(self, peer: str, name: str) -> None:
        """A peer will send over a communicator of this name."""
        node, link, _ = peer.partition(LINK)
        stale = [one for one in self._of if link and one.startswith(node + LINK)]
        if len(self._of) - len(stale) >= MOST:
            stale.append(next(one for one in self._of if one not in stale))
        for one in (*stale, peer):
            self.close(one)
        self._of[peer] = self._paths.receiving(name)

    def close(self, peer: str) -> None:
        """Nothing more comes of it; unknown ones are ignored."""
        if (path := self._of.pop(peer, None)) is not None:
            self._paths.drop(path)

    @property
    def links(self) -> Collection[str]:
        """Peers that are links of other instances."""
        return [peer for peer in self._of if LINK in peer]

    def __contains__(self, peer: str) -> bool:
        """It has opened a path."""
        return peer in self._of

    def expect(self, peer: str, header: Rows | Kv, sizes: Sequence[int]) -> None:
        """Its payload follows on the path that it has opened."""
        path = self._of[peer] = self._of.pop(peer)
        path.expect(header, sizes)

    def take(self) -> list[tuple[Rows | Kv, tuple[Buffer, ...]]]:
        """Headers whose payload is complete, in each peer's order."""
        self._paths.look()
        return [one for path in self._of.values() for one in path.arrived()]

    def broken(self) -> list[tuple[str, str]]:
        """(peer, why) of paths through which nothing comes any more; each is told once."""
        found = [(peer, path.fault) for peer, path in self._of.items() if path.fault]
        for peer, _ in found:
            self.close(peer)
        return found
