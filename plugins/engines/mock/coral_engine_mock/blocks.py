"""Paged KV: which blocks each request holds; what is leased stays until the lease ends."""

from __future__ import annotations

from coral.errors import EngineError, NoRoom
from coral.types.reservation import blocks


class BlockTable:
    def __init__(self, total: int, block_size: int) -> None:
        self.total = total
        self.block_size = block_size
        self._free = list(range(total))
        self._held: dict[str, list[int]] = {}
        self._reserved: dict[str, int] = {}
        self._leases: dict[str, int] = {}
        self._leaving: dict[str, list[int]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def reserved(self, request: str) -> int:
        """Tokens reserved for a request."""
        return self._reserved[request]

    def open(self, request: str, tokens: int) -> None:
        if request in self._held or request in self._leaving:
            raise EngineError(f"{request} is open already")
        self._held[request] = []
        try:
            self._take(request, tokens)
        except NoRoom:
            del self._held[request]
            raise

    def extend(self, request: str, tokens: int) -> None:
        if request not in self._held:
            raise EngineError(f"{request} is not open")
        self._take(request, tokens)

    def release(self, request: str) -> None:
        """Give a request's blocks back, at once or when its last lease ends."""
        held = self._held.pop(request, None)
        if held is None:
            return
        del self._reserved[request]
        if self._leases.get(request):
            self._leaving[request] = held
        else:
            self._free += held

    def lease(self, request: str) -> None:
        self._leases[request] = self._leases.get(request, 0) + 1

    def end_lease(self, request: str) -> None:
        self._leases[request] -= 1
        if not self._leases[request]:
            del self._leases[request]
            self._free += self._leaving.pop(request, [])

    def _take(self, request: str, tokens: int) -> None:
        held = self._held[request]
        more = blocks(tokens, self.block_size) - len(held)
        if more > len(self._free):
            raise NoRoom(f"{request} needs {more} more blocks for {tokens} tokens, {self.free} are free")
        if more > 0:
            held += self._free[-more:]
            del self._free[-more:]
        self._reserved[request] = max(tokens, self._reserved.get(request, 0))
