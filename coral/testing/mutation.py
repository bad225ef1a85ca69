"""Messages for fuzzing: one of every kind with random fields, and ways to spoil its bytes."""

from __future__ import annotations

import random
import string
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from coral.core.serve.net.wire import PROTOCOL, AnyMessage, Message, encode

KINDS: tuple[type[Message], ...] = get_args(AnyMessage)
EDGES = (0, 1, -1, 127, 128, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63))
DEEPEST = 3
HUGE = (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
"""First bytes of an array, a map, a text and bytes that say they have four thousand million entries."""


def message(draw: random.Random, kind: type[Message] | None = None) -> Message:
    """A valid message, of any kind where none is given."""
    made = specimen(kind or draw.choice(KINDS), draw)
    assert isinstance(made, Message)
    return made


def specimen(kind: Any, draw: random.Random, depth: int = 0) -> Any:
    """A random value of a type that messages are made of."""
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: specimen(field.type, draw, depth + 1) for field in fields})
    if origin is Literal:
        return draw.choice(arguments)
    if origin in (Union, types.UnionType):
        return specimen(draw.choice(arguments), draw, depth)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(specimen(one, draw, depth + 1) for one in arguments)
    many = 0 if depth > DEEPEST else draw.choice((0, 1, 1, 2, 5))
    if origin in (tuple, list):
        return origin(specimen(arguments[0], draw, depth + 1) for _ in range(many))
    if origin is dict:
        key, value = arguments
        return {specimen(key, draw, depth + 1): specimen(value, draw, depth + 1) for _ in range(many)}
    return _plain(kind, draw)


def _plain(kind: Any, draw: random.Random) -> Any:
    if kind is bool:
        return draw.random() < 0.5
    if kind is int:
        return draw.choice(EDGES) if draw.random() < 0.3 else draw.randrange(1000)
    if kind is float:
        return draw.choice((0.0, -0.0, 1.5, 1e308, -1e308, 5e-324)) if draw.random() < 0.3 else draw.random()
    if kind is str:
        letters = string.ascii_letters + "/#\x00é漢"
        return "".join(draw.choice(letters) for _ in range(draw.choice((0, 1, 3, 9, 40))))
    if kind is bytes:
        return draw.randbytes(draw.choice((0, 1, 9)))
    if kind is type(None):
        return None
    if kind is Any:
        return draw.choice((None, 1, "x", [], {}))
    raise TypeError(f"no specimen of {kind!r} is known")


def _flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _overwrite(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    data[at : at + draw.randrange(1, 9)] = draw.randbytes(draw.randrange(9))


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data)) :]


def _double(data: bytearray, draw: random.Random) -> None:
    at = draw.randrange(len(data))
    piece = data[at : at + draw.randrange(1, 64)]
    data[at:at] = piece * draw.choice((1, 1, 2, 50))


def _lengthen(data: bytearray, draw: random.Random) -> None:
    """A container or text that claims to be far longer than it is."""
    at = draw.randrange(len(data))
    data[at : at + 1] = draw.choice(HUGE)


def _nest(data: bytearray, draw: random.Random) -> None:
    """Containers within containers, deeper than any stack."""
    at = draw.randrange(len(data))
    data[at:at] = draw.choice((b"\x91", b"\x81\xa1a")) * draw.choice((10, 200, 20_000))


def _version(data: bytearray, draw: random.Random) -> None:
    data[0] = draw.choice((0, PROTOCOL + 1, 255, draw.randrange(256)))


def _replace(data: bytearray, draw: random.Random) -> None:
    data[:] = draw.randbytes(draw.choice((0, 1, 2, 30, 300)))


SPOILS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _flip,
    _flip,
    _overwrite,
    _cut,
    _double,
    _lengthen,
    _nest,
    _version,
    _replace,
)


def spoiled(frame: bytes, draw: random.Random) -> bytes:
    """The frame with one to three things wrong; by chance it may still be a message."""
    data = bytearray(frame)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if data:
            draw.choice(SPOILS)(data, draw)
    return bytes(data)


def frames(draw: random.Random, *, fresh: int = 64) -> Callable[[], bytes]:
    """An endless source of spoiled messages; every `fresh` calls the messages behind them are others."""
    valid: list[bytes] = []
    left = 0

    def one() -> bytes:
        nonlocal left
        if left == 0:
            valid[:] = [encode(message(draw, kind)) for kind in KINDS]
            left = fresh
        left -= 1
        return spoiled(draw.choice(valid), draw)

    return one
