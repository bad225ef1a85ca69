"""What an operator may set of how requests wait and go on elsewhere."""

from __future__ import annotations

from msgspec import Struct

from coral.core.config.serving import ServeSection


class RequestOptions(Struct, frozen=True, kw_only=True):
    """Times in seconds. `priorities`: weights of the models among each other; 1 where not named."""

    max_inflight: int = 1024
    queue_requests: int = 256
    """New requests of one model that may wait here for room."""
    queue_timeout_s: float = 30.0
    """Longest time that a new one waits here."""
    retry_share: float = 0.2
    """Retries that one submitted request pays for."""
    retry_per_s: float = 10.0
    retry_burst: float = 100.0
    retries_per_request: int = 8
    priorities: dict[str, float] = {}

    @classmethod
    def of(cls, serve: ServeSection, priorities: dict[str, float]) -> RequestOptions:
        """As the config's section `serve` says."""
        return cls(
            max_inflight=serve.max_inflight,
            queue_requests=serve.queue.requests,
            queue_timeout_s=serve.queue.timeout,
            retry_share=serve.retries.share,
            retry_per_s=serve.retries.per_second,
            retry_burst=serve.retries.burst,
            retries_per_request=serve.retries.per_request,
            priorities=priorities,
        )
