"""What malformed messages and raw bytes do to a live system: nothing.

    python -m benchmarks.fuzz --json

Three parts. `decoder`: spoiled messages into the decoder and the checks of payloads, in this process. `peer`:
the same to all sockets of a `coral serve` that serves meanwhile, by someone whom they let in. `sockets`: raw
bytes (noise, greetings, half a handshake) at every listening socket of every process. Last line: one JSON
object. A crash is an exception that is no ProtocolError, or a process of the system that is not there any
more; growth is resident memory at the end of a part against its middle.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import zmq

from coral.core.serve.net.messages.data import Rows
from coral.core.serve.net.messages.handover import Kv
from coral.core.serve.net.payload import fault, kv_bytes, kv_fault, rows_bytes
from coral.core.serve.net.wire import decode
from coral.errors import ProtocolError
from coral.testing.mutation import frames
from coral.testing.pipeline import pipeline_config
from coral.testing.system import ServingSystem, coral_serve
from coral.testing.tiny import make_tiny

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0"
WAIT_S = 0.05


def decoder(count: int, seed: int) -> dict[str, Any]:
    """Spoiled messages into the decoder."""
    source = frames(random.Random(seed), fresh=2048)
    refused = crashes = 0
    halves: list[int] = []
    for number in range(count):
        if number in (count // 2, count - 1):
            halves.append(psutil.Process().memory_info().rss)
        try:
            message = decode(source())
            if isinstance(message, Rows):
                fault(message, rows_bytes(message))
            elif isinstance(message, Kv):
                kv_fault(message, kv_bytes(message))
        except ProtocolError:
            refused += 1
        except Exception as error:  # what this looks for
            crashes += 1
            print(f"crash: {error!r}", file=sys.stderr)
    return {"messages": count, "refused": refused, "crashes": crashes, "growth": halves[1] / halves[0]}


@contextlib.contextmanager
def system(folder: Path) -> Iterator[ServingSystem]:
    """A model in a pipeline over the mock engine."""
    config = pipeline_config(
        make_tiny("llama", folder / "tiny", layers=6),
        cloud=folder / "local",
        state=folder / "state",
        cost={"overhead_s": 1e-3, "layer_s": 1e-4},
    )
    with coral_serve(config, folder) as one:
        one.wait_ready(180)
        yield one
        one.stop()


def listening(pids: list[int]) -> list[tuple[str, Any]]:
    """(kind, address) of every socket that these processes listen on."""
    found: dict[tuple[str, Any], None] = {}
    unix = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) == 8 and int(words[3], 16) & 0x10000:
            unix[words[6]] = words[7]
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            for one in psutil.Process(pid).net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found["tcp", (one.laddr.ip, one.laddr.port)] = None
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    name = str(descriptor.readlink())
                    if name.startswith("socket:[") and (path := unix.get(name[8:-1])):
                        found["unix", path if path[0] != "@" else "\0" + path[1:]] = None
    return list(found)


class Serving:
    """Asks the system something all the time; what it answers must stay what it was."""

    def __init__(self, one: ServingSystem) -> None:
        self._one = one
        self._stop = threading.Event()
        self.answers = self.wrong = 0
        self._right = self._ask()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> object:
        body = {"model": "tiny", "prompt": "hello there", "max_tokens": 8, "temperature": 0}
        status, answer = self._one.post("/v1/completions", body)
        return status, answer.get("choices")

    def _run(self) -> None:
        while not self._stop.wait(WAIT_S):
            self.answers += 1
            self.wrong += self._ask() != self._right


def memory(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def against(one: ServingSystem, count: int, attack: Callable[[int], None]) -> dict[str, Any]:
    """Run an attack of `count` steps while the system serves."""
    before = one.processes()
    halves = []
    began = time.monotonic()
    with Serving(one) as serving:
        for number in range(count):
            if number in (count // 2, count - 1):
                halves.append(memory(list(before)))
            attack(number)
        time.sleep(1.0)
    after = one.processes()
    return {
        "steps": count,
        "answers": serving.answers,
        "wrong_answers": serving.wrong,
        "crashes": len(set(before) - set(after)),
        "growth": halves[1] / halves[0],
        "seconds": round(time.monotonic() - began, 1),
    }


def peer(one: ServingSystem, count: int, seed: int) -> dict[str, Any]:
    """Spoiled messages by someone whom the sockets let in."""
    draw = random.Random(seed)
    source = frames(draw, fresh=2048)
    sent = 0
    with zmq.Context() as context:
        context.linger = 0
        ours: list[zmq.Socket[bytes]] = []
        for kind, place in listening(list(one.processes())):
            address = f"ipc://{place}" if kind == "unix" else f"tcp://{place[0]}:{place[1]}"
            for pattern in (zmq.DEALER, zmq.PUSH):
                dealt = context.socket(pattern)
                dealt.sndhwm, dealt.sndtimeo, dealt.immediate = 1_000, 200, True
                dealt.connect(address)
                ours.append(dealt)
        time.sleep(1.0)
        deaf = [dealt for dealt in ours if not dealt.poll(0, zmq.POLLOUT)]  # of another pattern, or no ZeroMQ
        ours = [dealt for dealt in ours if dealt not in deaf]
        for dealt in deaf:
            dealt.close(linger=0)

        def attack(_: int) -> None:
            chosen = draw.choice(ours)
            many = [source() for _ in range(draw.choice((1, 1, 1, 2, 3)))]
            nonlocal sent
            with contextlib.suppress(zmq.Again):
                chosen.send_multipart(many)
                sent += 1

        try:
            return {"sockets": len(ours), **against(one, count, attack), "sent": sent}
        finally:
            for dealt in ours:
                dealt.close(linger=0)


def sockets(one: ServingSystem, count: int, seed: int) -> dict[str, Any]:
    """Raw bytes at everything that listens: `count` for each."""
    draw = random.Random(seed)
    places = listening(list(one.processes()))
    answered = 0

    def attack(number: int) -> None:
        nonlocal answered
        kind, place = places[number % len(places)]
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        with socket.socket(family) as raw, contextlib.suppress(OSError):
            raw.settimeout(WAIT_S)
            raw.connect(place)
            noise = draw.randbytes(draw.choice((1, 10, 64, 500)))
            kinds = (noise, GREETING, GREETING + noise, GREETING[:10], b"GET / HTTP/1.1\r\n" + noise)
            raw.sendall(draw.choice(kinds))
            if draw.random() < 0.02:
                answered += bool(raw.recv(64))

    return {"sockets": len(places), **against(one, count * len(places), attack), "said_something": answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--messages", type=int, default=1_000_000, help="into the decoder")
    parser.add_argument("--peer", type=int, default=200_000, help="to the sockets of a live system")
    parser.add_argument("--frames", type=int, default=10_000, help="at each listening socket")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    result: dict[str, Any] = {"decoder": decoder(given.messages, given.seed)}
    if not given.json:
        print("decoder", result["decoder"])
    with tempfile.TemporaryDirectory(prefix="coral-fuzz-") as folder, system(Path(folder)) as one:
        result["peer"] = peer(one, given.peer, given.seed + 1)
        if not given.json:
            print("peer", result["peer"])
        result["sockets"] = sockets(one, given.frames, given.seed + 2)
        if not given.json:
            print("sockets", result["sockets"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
