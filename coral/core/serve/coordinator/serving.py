"""What the front door needs of the coordinator, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from coral.errors import RequestError
from coral.types.request import GenerateRequest, Token


class ServedModel(Struct, frozen=True, kw_only=True):
    """`folder` holds tokenizer and config. `max_request_tokens`: prompt and output together, the
    longest any instance can hold, or could when there last was one (0 before that). `created`: seconds
    since the epoch. `coming`: one that has been ready is not now and will be again; requests for it wait."""

    name: str
    folder: str
    max_request_tokens: int
    created: int
    ready: bool
    coming: bool = False


class TokenSink(Protocol):
    """Where a request's tokens go. Called from the event loop, never concurrently; must not block."""

    def on_tokens(self, tokens: Sequence[Token]) -> None:
        """In order of position, without gaps or doubles; the last has `finish` set."""
        ...

    def on_error(self, error: RequestError) -> None:
        """The request has ended without finishing; nothing follows."""
        ...


class Serving(Protocol):
    def models(self) -> Sequence[ServedModel]: ...

    def state(self) -> dict[str, object]:
        """For `/coral/v1/status`: plan, instances, nodes, processes, plain JSON."""
        ...

    async def plans(self, newest: int) -> list[dict[str, object]]:
        """For `/coral/v1/plans`: plans that were carried out, newest first, in short. Raises StoreError."""
        ...

    async def past_plan(self, number: int) -> dict[str, object]:
        """One of them, whole. Raises StoreError where it is not kept."""
        ...

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        """Route the request and send it, or let it wait for room. Raises RequestError: 404 unknown model,
        503 none ready, 429 too many in flight or waiting (both with retry_after_s)."""
        ...

    def turned_away(self, model: str) -> None:
        """A request for it was refused before it was submitted, since no instance is there."""
        ...

    def abort(self, request: str, *, stalled: bool = False) -> None:
        """Nobody wants it any more: its client has left, or it was given up since nothing came (`stalled`).
        Unknown or finished ids are ignored. The sink is not called again."""
        ...
