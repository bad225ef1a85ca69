"""What an operator may set at the front door; the defaults suit a public HTTP port."""

from __future__ import annotations

from msgspec import Struct

from coral.core.config.serving import ServeSection


class FrontDoorOptions(Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes. Everything a client can make grow has its bound here."""

    request_timeout_s: float = 120.0
    """A request that has seen no token for so long ends with 504, or with an error event."""
    deadline_s: float | None = None
    """A request that has not ended by then ends with 504; one may ask for less by `timeout`."""
    client_timeout_s: float = 30.0
    """A client that takes nothing for so long, or does not finish sending a head or a body, is dropped."""
    max_connections: int = 8192
    """Connections that may be open; never more than half of the files that this process may open."""
    max_head_bytes: int = 64 * 1024
    """Request line and headers together."""
    max_pending_chars: int = 256 * 1024
    """Characters that may wait for one slow client before the client is dropped."""
    max_body_bytes: int = 8 * 1024 * 1024
    max_sequences: int = 128
    """Sequences one HTTP request may ask for: prompts times `n`."""
    tokenizer_threads: int = 2
    inline_chars: int = 4 * 1024
    """Prompts up to this long are tokenised in the event loop, longer ones on a thread."""
    max_waiting_prompts: int = 64
    """Long prompts that may wait for a tokenizer thread before requests are refused with 429."""
    retry_after_s: float = 1.0
    """What a refusal for lack of room tells the client to wait where nothing better is known."""

    @classmethod
    def of(cls, serve: ServeSection) -> FrontDoorOptions:
        """What the config says in its section `serve`; the rest is not for operators to set."""
        return cls(
            request_timeout_s=serve.request_timeout,
            deadline_s=serve.deadline,
            client_timeout_s=serve.client_timeout,
            max_body_bytes=serve.max_body,
            max_sequences=serve.max_sequences,
            tokenizer_threads=serve.tokenizer_threads,
        )
