"""The config of the live system: its section `serve`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from coral.core.config.strict import Bool, Float, Int
from coral.hookspecs.options import Bytes, Duration, Options


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"not an address: {text!r} (expected host:port, for example 127.0.0.1:8000)")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(
            f"not an address: {text!r} (an IPv6 host stands in brackets, for example [::1]:8000)"
        )
    return text


class QueueSection(Options):
    """New requests that wait at the coordinator while all instances of their model are full."""

    requests: Annotated[Int, Field(ge=0)] = 256
    """Most of one model; more are answered 429, and so are those for whom no room is in sight in time."""
    timeout: Annotated[Duration, Field(gt=0)] = 30.0
    """Longest time one waits; then it is answered 503."""


class RetriesSection(Options):
    """Requests that go on at another instance when theirs has failed. Those beyond the budget wait for it."""

    share: Annotated[Float, Field(ge=0)] = 0.2
    """Retries that are earned by every request that is taken in."""
    per_second: Annotated[Float, Field(gt=0)] = 10.0
    """Retries that are earned every second."""
    burst: Annotated[Float, Field(ge=1)] = 100.0
    """Most retries that are saved up."""
    per_request: Annotated[Int, Field(ge=0)] = 8
    """How often one request may go on elsewhere; then it ends with 503."""


class ServeSection(Options):
    """The live system."""

    http: Annotated[str, AfterValidator(_address)] = "127.0.0.1:8000"
    """Address of the front door, host:port; port 0 takes a free one."""
    disaggregate: Bool = False
    """Whether prefill and decode run on instances of their own."""
    grace: Annotated[Duration, Field(gt=0)] = 30.0
    """How long agents keep workers when the coordinator is gone."""
    max_inflight: Annotated[Int, Field(ge=1)] = 1024
    """Requests in the system at once; more are answered 429."""
    queue: QueueSection = QueueSection()
    retries: RetriesSection = RetriesSection()
    request_timeout: Annotated[Duration, Field(gt=0)] = 120.0
    """Longest time a request may see no token, waiting for room included; then it ends with 504."""
    deadline: Annotated[Duration, Field(gt=0)] | None = None
    """Longest time a whole answer may take; then it ends with 504. A request's `timeout` may ask for
    less. No limit where not given."""
    client_timeout: Annotated[Duration, Field(gt=0)] = 30.0
    """Longest time a client may take nothing of its answer, or take to send its request."""
    max_body: Annotated[Bytes, Field(gt=0)] = 8 << 20
    """Largest body of a request; larger ones are answered 413."""
    max_sequences: Annotated[Int, Field(ge=1)] = 128
    """Sequences one request may ask for: its prompts times `n`."""
    tokenizer_threads: Annotated[Int, Field(ge=1, le=64)] = 2
    """Threads that tokenise long prompts."""
    start_timeout: Annotated[Duration, Field(gt=0)] = 300.0
    """How long an instance may take to become ready."""
    drain_timeout: Annotated[Duration, Field(gt=0)] = 30.0
    """How long running requests may take to finish when an instance or the system ends."""
    floor: Annotated[Float, Field(ge=0, le=1)] = 0.5
    """Share of what a plan serves of a model that stays served while one plan follows another."""
    kv_lease: Annotated[Duration, Field(gt=0)] = 60.0
    """How long a prefill instance keeps the KV of a request, and a decode instance the room for it, while
    the hand-over does not come about."""
    channel: Literal["auto", "zmq", "gloo", "nccl"] = "auto"
    """How hidden rows and KV go from worker to worker. `auto`: NCCL where all nodes of an instance are CUDA
    devices and payloads may go unencrypted, else ZeroMQ. gloo and NCCL do not encrypt."""
    trusted_network: Bool = False
    """Whether payloads between machines may go unencrypted."""
