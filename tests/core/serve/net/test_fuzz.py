"""Whatever bytes come: a message of the protocol, or a ProtocolError; nothing else, and nothing is kept."""

from __future__ import annotations

import random

import pytest

from coral.core.serve.net.messages.data import Rows
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.payload import LARGEST_PAYLOAD, fault, kv_bytes, kv_fault, rows_bytes
from coral.core.serve.net.wire import Message, decode, encode
from coral.errors import ProtocolError
from coral.testing.mutation import HUGE, KINDS, frames, message


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_comes_back_as_it_was(kind: type[Message]) -> None:
    draw = random.Random(kind.__name__)
    for _ in range(50):
        one = message(draw, kind)
        assert decode(encode(one)) == one


def test_what_is_spoiled_is_refused_or_is_a_message() -> None:
    source = frames(random.Random(4), fresh=512)
    refused = 0
    for _ in range(20_000):
        try:
            decode(source())
        except ProtocolError:
            refused += 1
    assert 0.5 < refused / 20_000 < 1.0, "most are spoiled for good, and some are still messages"


def test_a_container_that_claims_to_be_huge_takes_no_memory() -> None:
    whole = encode(message(random.Random(1)))
    for head in HUGE:
        with pytest.raises(ProtocolError):
            decode(whole[:1] + head + whole[2:])


def test_no_header_makes_the_checks_of_its_payload_fail() -> None:
    """Sizes are worked out before anything is taken; a header of nonsense is a fault in words."""
    draw = random.Random(9)
    for _ in range(5_000):
        rows = message(draw, Rows)
        assert isinstance(rows, Rows)
        assert rows_bytes(rows) >= 0
        if fault(rows, rows_bytes(rows)) is None:
            assert rows_bytes(rows) <= LARGEST_PAYLOAD
        kv = message(draw, Kv)
        assert isinstance(kv, Kv)
        assert all(size >= 0 for size in kv_bytes(kv))
        if kv_fault(kv, kv_bytes(kv)) is None:
            assert sum(kv_bytes(kv)) <= LARGEST_PAYLOAD
