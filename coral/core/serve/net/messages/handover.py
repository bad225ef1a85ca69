"""KV handed from a prefill instance to a decode instance of the same model.

::

    coordinator           prefill: scheduler   workers          decode: workers   scheduler
        │ Submit(leg=prefill) ──►│ OpenSequence ─►│                     │              │
        │◄── Begun ──────────────│                │ runs chunks         │              │
        │ Submit(leg=decode) ─────────────────────────────────────────────────────────►│ reserves a route
        │                        │                │                     │◄OpenSequence─│
        │◄─ KvAwaited(to) ─────────────────────────────────────────────────────────────│
        │ HandOver(to) ─────────►│ SendKv(to) ───►│ Kv, Kv, … ─────────►│ imports      │
        │◄── Tokens (one) ────────────────────────│                     │              │
        │ GoOn(tokens) ───────────────────────────────────────────────────────────────►│
        │                        │◄─── KvSent ────│                     │─ KvArrived ─►│
        │◄── HandedOver ─────────│ releases       │                     │◄ ResumeSequence
        │◄── Tokens ────────────────────────────────────────────────────│              │

The decode instance is asked for as soon as the prompt runs, so that KV goes over chunk by chunk while
the rest of the prompt is computed. Either side may break off at any time: `Abort` goes to both legs.
The prefill side holds its blocks until every receiver has credited all it was sent; the decode side
holds its own from its opening on, so that nothing that is still written is anybody else's.
"""

from __future__ import annotations

from msgspec import Struct

from coral.core.serve.net.messages.base import Message
from coral.types.handover import KvDestination, KvNode
from coral.types.stage import KvKind

# ------------------------------------------------------------ coordinator and schedulers


__all__ = [
    "Begun",
    "GoOn",
    "HandOver",
    "HandedOver",
    "Kv",
    "KvArrived",
    "KvAwaited",
    "KvDestination",
    "KvNode",
    "KvPart",
    "KvSent",
    "ResumeSequence",
    "SendKv",
]


class Begun(Message, frozen=True, kw_only=True, tag="begun"):
    """Prefill leg: it has room and its prompt runs; a destination for its KV is wanted from now on."""

    request: str


class KvAwaited(Message, frozen=True, kw_only=True, tag="kv-awaited"):
    """Decode leg: room is reserved and every node of the route expects the KV."""

    request: str
    to: KvDestination


class HandOver(Message, frozen=True, kw_only=True, tag="hand-over"):
    """Prefill leg: send the KV there. A later one replaces an earlier, and starts from the first token."""

    request: str
    to: KvDestination


class HandedOver(Message, frozen=True, kw_only=True, tag="handed-over"):
    """Prefill leg: the token is sampled, all KV is with its receivers, and the request has left."""

    request: str


class GoOn(Message, frozen=True, kw_only=True, tag="go-on"):
    """Decode leg: what the prefill leg sampled. Decoding starts once the KV is there as well."""

    request: str
    tokens: tuple[int, ...]


# ------------------------------------------------------------ scheduler and workers


class SendKv(Message, frozen=True, kw_only=True, tag="send-kv"):
    """Send the KV of this node's layers there, what is computed at once, the rest as it comes. A receiver
    that takes nothing for `lease_s` seconds is given up."""

    request: str
    attempt: int
    to: KvDestination
    lease_s: float = 60.0


class KvSent(Message, frozen=True, kw_only=True, tag="kv-sent"):
    """The KV of every known token of this node's layers is with its receivers. `destination`: the
    receiving attempt, by which an answer to an earlier `SendKv` is told from one to the last."""

    node: str
    request: str
    attempt: int
    destination: tuple[str, int]
    """(instance, attempt)."""


class KvArrived(Message, frozen=True, kw_only=True, tag="kv-arrived"):
    """The KV of the first `tokens` tokens is in this node's engine; all of it, where these are all that
    were known when the sequence was opened. Sent as it grows."""

    node: str
    request: str
    attempt: int
    tokens: int


class ResumeSequence(Message, frozen=True, kw_only=True, tag="resume"):
    """Its KV is complete; these tokens were sampled elsewhere. Later stages answer `SequenceOpened`; it is
    sent to stage 0 last, which starts on it."""

    request: str
    attempt: int
    tokens: tuple[int, ...]


# ------------------------------------------------------------ worker and worker


class KvPart(Struct, frozen=True, kw_only=True, array_like=True):
    """One section of canonical KV (`coral.types.stage.KvSection`) without its bytes: its K and then its V
    are two frames of the payload, or stand one after the other where the payload is one buffer."""

    layer: int
    kind: KvKind
    dtype: str
    shape: tuple[int, int, int]
    token_start: int
    head_start: int = 0


class Kv(Message, frozen=True, kw_only=True, tag="kv"):
    """Tokens `[start, end)` of some layers of one request, to a node of another instance.

    `instance`, `generation` and `attempt` are the receiver's; `sender` names the link that it comes by: a
    node of the instance that computed it, `#`, and a number. `known`: tokens of which KV will come in all.
    Every layer in it is there with all its heads, in one or several parts, and all parts end at `end`; a part
    of a windowed layer starts later than `start` where nothing before can still be attended to.
    """

    instance: str
    generation: int
    sender: str = ""
    sequence: int = 0
    """Counts the messages of KV on this link from 1; the channel sets it, and `sender`."""
    request: str
    attempt: int
    start: int
    end: int
    known: int
    parts: tuple[KvPart, ...]
