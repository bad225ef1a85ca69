"""Scheduler and coordinator."""

from __future__ import annotations

from msgspec import field

from coral.core.serve.net.messages.base import Message
from coral.types.request import GenerateRequest, Leg
from coral.types.stage import EngineStats, InstanceSpec, KvCapacity


class SchedulerHello(Message, frozen=True, kw_only=True, tag="scheduler-hello"):
    instance: str
    generation: int
    pid: int
    address: str
    """Where the instance's workers dial."""


class RunInstance(Message, frozen=True, kw_only=True, tag="run-instance"):
    spec: InstanceSpec
    tokens_address: str
    """Where the last stage pushes tokens."""


class InstanceProgress(Message, frozen=True, kw_only=True, tag="instance-progress"):
    instance: str
    loaded: int
    nodes: int
    text: str = ""


class InstanceReady(Message, frozen=True, kw_only=True, tag="instance-ready"):
    instance: str
    kv_tokens: int
    """Tokens of KV the instance can hold: the least over its stages of the sum over their nodes."""
    max_request_tokens: int
    """The longest single request a route can hold."""
    capacities: dict[str, KvCapacity] = field(default_factory=dict)


class InstanceFailed(Message, frozen=True, kw_only=True, tag="instance-failed"):
    instance: str
    reason: str
    node: str = ""


class InstanceStats(Message, frozen=True, kw_only=True, tag="instance-stats"):
    instance: str
    running: int
    waiting: int
    preemptions: int
    nodes: dict[str, EngineStats] = field(default_factory=dict)
    picks: dict[str, int] = field(default_factory=dict)
    """Requests sent to each node since start."""


class Submit(Message, frozen=True, kw_only=True, tag="submit"):
    """`leg`: what this instance is to do of it (see `handover`). The prefill leg's `max_tokens` ends it
    after one token."""

    request: GenerateRequest
    leg: Leg = "whole"


class Abort(Message, frozen=True, kw_only=True, tag="abort"):
    requests: tuple[str, ...]


class RequestRefused(Message, frozen=True, kw_only=True, tag="refused"):
    """The scheduler cannot take it: `status` 400 (too long for any route) or 503 (queue full)."""

    request: str
    status: int
    reason: str


class RequestLost(Message, frozen=True, kw_only=True, tag="lost"):
    """The instance can no longer serve a request it had taken."""

    request: str
    reason: str


class Drain(Message, frozen=True, kw_only=True, tag="drain"):
    """Take no new requests; say `Drained` when the last has left."""


class Drained(Message, frozen=True, kw_only=True, tag="drained"):
    instance: str


class AskStats(Message, frozen=True, kw_only=True, tag="ask-stats"):
    pass
