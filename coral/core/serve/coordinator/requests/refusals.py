"""What clients are told that are refused, or whose request has failed."""

from __future__ import annotations

from collections.abc import Iterable

from coral.errors import RequestError

NO_INSTANCE_S = 5.0
"""When to come again where there is no instance, and nothing says when there will be."""
FAILED_S = 1.0


def unknown_model(model: str, known: Iterable[str]) -> RequestError:
    return RequestError(
        f"The model {model!r} does not exist. Served here: {', '.join(known)}.",
        status=404,
        param="model",
        code="model_not_found",
    )


def double(request: str) -> RequestError:
    return RequestError(f"A request with id {request!r} is in flight.", status=409, param="id")


def too_many(in_flight: int, retry_after_s: float) -> RequestError:
    """The limit on requests in flight is reached."""
    return RequestError(
        f"{in_flight} requests are in flight, the most this server takes of this model now.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )


def queue_full(model: str, waiting: int, retry_after_s: float) -> RequestError:
    return RequestError(
        f"All instances of {model!r} are full, and {waiting} requests wait for room already.",
        status=429,
        code="rate_limit_exceeded",
        retry_after_s=retry_after_s,
    )


def no_instance(model: str) -> RequestError:
    return RequestError(
        f"No instance of {model!r} that can hold this request is ready.",
        status=503,
        code="service_unavailable",
        retry_after_s=NO_INSTANCE_S,
    )


def no_room_came(model: str, waited_s: float, retry_after_s: float) -> RequestError:
    return RequestError(
        f"No instance of {model!r} had room for this request within {waited_s:g} s.",
        status=503,
        code="service_unavailable",
        retry_after_s=retry_after_s,
    )


def too_long(reason: str) -> RequestError:
    return RequestError(reason, status=400, param="messages", code="context_length_exceeded")


def gave_up(reason: str, moves: int) -> RequestError:
    """It has gone from instance to instance in vain."""
    return RequestError(
        f"The instance that served this request has failed ({reason}); it had gone on elsewhere "
        f"{moves} times before.",
        status=503,
        code="service_unavailable",
        retry_after_s=FAILED_S,
    )


def cannot_be_routed() -> RequestError:
    return RequestError(
        "The router failed on this request; the server's log says why.",
        status=503,
        code="service_unavailable",
        retry_after_s=FAILED_S,
    )


def past_deadline() -> RequestError:
    return RequestError("The request's deadline has passed.", status=504, code="timeout")
