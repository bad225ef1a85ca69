from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from coral.core.solve.frames import PREFIX, Answer, Ask, Found, Frames
from coral.errors import ProtocolError

ASK = Ask(work_limit=None, time_limit_s=1.5, gap=1e-4)


class Pair:
    def __init__(self) -> None:
        self.raw, other = socket.socketpair()
        self.frames = Frames(other)

    def close(self) -> None:
        self.raw.close()
        self.frames.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.close()


def test_arrays_arrive_as_they_were_sent(pair: Pair) -> None:
    """More than a socket's buffers hold, empty ones and a view with strides among them."""
    arrays = {
        "cost": np.arange(500_000, dtype=np.float64)[::2],
        "indices": np.arange(7, dtype=np.int64),
        "integer": np.array([True, False, True]),
        "none": np.zeros(0),
    }
    other = Frames(pair.raw)
    sender = threading.Thread(target=lambda: other.send(ASK, arrays))
    sender.start()
    message, got = pair.frames.receive(time.monotonic() + 20.0)
    sender.join()
    assert message == ASK
    assert list(got) == list(arrays)
    for name, array in arrays.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_what_is_not_finite_arrives(pair: Pair) -> None:
    Frames(pair.raw).send(Found(bound=float("-inf")), {"x": np.array([np.inf, -np.inf])})
    message, got = pair.frames.receive(time.monotonic() + 5.0)
    assert message == Found(bound=float("-inf"))
    np.testing.assert_array_equal(got["x"], [np.inf, -np.inf])


def test_an_array_of_another_kind_is_refused(pair: Pair) -> None:
    for array in (np.zeros((2, 2)), np.zeros(2, dtype=np.float32), np.array(["a"])):
        with pytest.raises(ValueError, match="nothing to send"):
            pair.frames.send(ASK, {"x": array})


def test_the_other_end_is_gone(pair: Pair) -> None:
    pair.raw.sendall(PREFIX.pack(10, 0) + b"abc")
    pair.raw.close()
    with pytest.raises(EOFError):
        pair.frames.receive(time.monotonic() + 5.0)
    with pytest.raises(EOFError):
        pair.frames.send(ASK)


def test_a_frame_that_stops_in_the_middle_times_out(pair: Pair) -> None:
    pair.raw.sendall(PREFIX.pack(10, 0) + b"abc")
    with pytest.raises(TimeoutError):
        pair.frames.receive(time.monotonic() + 0.1)


def test_a_reader_that_does_not_read_times_out(pair: Pair) -> None:
    with pytest.raises(TimeoutError):
        pair.frames.send(ASK, {"x": np.zeros(5_000_000)}, time.monotonic() + 0.1)


@pytest.mark.parametrize("seed", range(40))
def test_noise_is_a_protocol_error(pair: Pair, seed: int) -> None:
    """Whatever a process with a broken heap writes: never a crash, a huge allocation or a wrong answer."""
    draw = np.random.default_rng(seed)
    good = Frames(pair.raw)
    answer = Answer(status="optimal", termination="t", objective=1.0, bound=1.0, work=1, seconds=1.0)
    listener, talker = socket.socketpair()
    Frames(talker).send(answer, {"x": np.arange(3.0)})
    frame = bytearray(listener.recv(1 << 16))
    listener.close()
    talker.close()
    for position in draw.integers(0, len(frame), 1 + seed % 4):
        frame[position] = draw.integers(0, 256)
    pair.raw.setblocking(True)
    pair.raw.sendall(frame)
    pair.raw.shutdown(socket.SHUT_WR)
    try:
        message, arrays = pair.frames.receive(time.monotonic() + 5.0)
    except (ProtocolError, EOFError):
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(frame)
    assert type(message).__name__ in {"Ready", "Ask", "Found", "Answer", "Failed"}
    del good
