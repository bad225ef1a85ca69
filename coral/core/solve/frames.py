"""What crosses between a caller and its solver's process: a header in msgpack, then arrays as raw bytes.

One stream socket each way. A frame is `header length (u32), payload length (u64), header, payload`; the
header names the arrays that make up the payload, each of one dimension, by name, dtype and length.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from select import POLLIN, POLLOUT, poll
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.errors import ProtocolError
from coral.types.program import SolverFeatures, Status

Arrays = Mapping[str, NDArray[Any]]
PREFIX = struct.Struct("<IQ")
LONGEST_HEADER = 1 << 20
DTYPES = {"f8": np.float64, "i8": np.int64, "b1": np.bool_}


class Ready(Struct, frozen=True, kw_only=True, tag=True):
    """The solver is built."""

    features: SolverFeatures


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """Solve the program in the payload: `Program`'s arrays, and `start` where there is one."""

    work_limit: int | None
    time_limit_s: float | None
    gap: float


class Found(Struct, frozen=True, kw_only=True, tag=True):
    """An incumbent `x`, while the solver goes on."""

    bound: float


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """The end of a solve: `x` and `row_duals` where the solution has them."""

    status: Status
    termination: str
    objective: float
    bound: float
    work: int
    seconds: float


class Failed(Struct, frozen=True, kw_only=True, tag=True):
    """The solver raised, and its process goes on; or it could not be built, and the process ends."""

    error: str
    """Name of a class of `coral.errors`."""
    message: str
    mend: str | None


Message = Ready | Ask | Found | Answer | Failed


class Part(Struct, frozen=True, array_like=True):
    name: str
    dtype: str
    length: int


class Header(Struct, frozen=True, array_like=True):
    message: Message
    parts: tuple[Part, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Header).decode


def _raw(array: NDArray[Any]) -> memoryview:
    return memoryview(array.data).cast("B")


class Frames:
    """One end of the stream. `deadline` is on the monotonic clock; None waits for ever.

    EOFError: the other end is gone. TimeoutError: the deadline has passed, maybe in the middle of a frame,
    and the stream is of no more use. ProtocolError: what came is no frame.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._readable, self._writable = poll(), poll()
        self._readable.register(end, POLLIN)
        self._writable.register(end, POLLOUT)

    def send(self, message: Message, arrays: Arrays | None = None, deadline: float | None = None) -> None:
        arrays = arrays or {}
        parts, views = [], []
        for name, array in arrays.items():
            dtype = array.dtype.str[1:]
            if dtype not in DTYPES or array.ndim != 1:
                raise ValueError(f"{name} is {array.dtype} of shape {array.shape}: nothing to send")
            parts.append(Part(name, dtype, len(array)))
            views.append(_raw(np.ascontiguousarray(array)))
        header = _encode(Header(message, tuple(parts)))
        prefix = PREFIX.pack(len(header), sum(view.nbytes for view in views))
        pending = [memoryview(prefix + header), *(view for view in views if view.nbytes)]
        while pending:
            try:
                sent = self._socket.sendmsg(pending)
            except BlockingIOError:
                self._wait(self._writable, deadline)
                continue
            except (BrokenPipeError, ConnectionResetError) as error:
                raise EOFError("the other end is gone") from error
            while pending and sent >= pending[0].nbytes:
                sent -= pending.pop(0).nbytes
            if sent:
                pending[0] = pending[0][sent:]

    def receive(self, deadline: float | None = None) -> tuple[Message, dict[str, NDArray[Any]]]:
        header_bytes, payload_bytes = PREFIX.unpack(self._read(PREFIX.size, deadline))
        if header_bytes > LONGEST_HEADER:
            raise ProtocolError(f"a header of {header_bytes} bytes is no header")
        try:
            header = _decode(self._read(header_bytes, deadline))
            lengths = [part.length * np.dtype(DTYPES[part.dtype]).itemsize for part in header.parts]
        except (msgspec.DecodeError, KeyError) as error:
            raise ProtocolError(f"a malformed header: {error}") from error
        if min(lengths, default=0) < 0 or sum(lengths) != payload_bytes:
            raise ProtocolError(f"a payload of {payload_bytes} bytes is not what its header says")
        arrays = {}
        for part, length in zip(header.parts, lengths, strict=True):
            array: NDArray[Any] = np.empty(part.length, DTYPES[part.dtype])
            if length:
                self._fill(_raw(array), deadline)
            arrays[part.name] = array
        return header.message, arrays

    def _read(self, size: int, deadline: float | None) -> bytearray:
        buffer = bytearray(size)
        self._fill(memoryview(buffer), deadline)
        return buffer

    def _fill(self, view: memoryview, deadline: float | None) -> None:
        while view.nbytes:
            try:
                got = self._socket.recv_into(view)
            except BlockingIOError:
                self._wait(self._readable, deadline)
                continue
            except ConnectionResetError as error:
                raise EOFError("the other end is gone") from error
            if not got:
                raise EOFError("the other end is gone")
            view = view[got:]

    def _wait(self, what: poll, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        what.poll(None if left is None else left * 1e3 + 1)

    def close(self) -> None:
        self._socket.close()
