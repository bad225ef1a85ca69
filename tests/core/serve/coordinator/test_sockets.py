from __future__ import annotations

import asyncio
from pathlib import Path

import zmq

from coral.core.serve.coordinator.control import Control, Peer
from coral.core.serve.coordinator.sockets import TURN
from coral.core.serve.coordinator.tokens import TokenSocket
from coral.core.serve.net.wire import AnyMessage, Heartbeat, Tokens, encode
from coral.testing.waiting import until
from coral.types.request import Token

FLOOD = 5 * TURN + 7


def test_a_flood_is_drained_to_the_last_message_and_others_have_their_turn(tmp_path: Path) -> None:
    async def run() -> tuple[int, int, int]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        seen: list[int] = []
        turns = 0
        done = asyncio.Event()

        def on_tokens(message: Tokens) -> None:
            seen.append(message.tokens[0].position)
            if len(seen) == FLOOD:
                done.set()

        tokens = TokenSocket(context, f"ipc://{tmp_path}/tokens", on_tokens)
        push = context.socket(zmq.PUSH)
        push.connect(tokens.address)
        for position in range(FLOOD):
            token = Token(request="r", attempt=0, position=position, token=1)
            push.send(encode(Tokens(instance="i", node="n", tokens=(token,))))
        push.send(b"\x01garbage")

        async def others() -> None:
            nonlocal turns
            while not done.is_set():
                turns += 1
                await asyncio.sleep(0)

        await asyncio.wait_for(asyncio.gather(others(), done.wait()), 20)
        await until(lambda: tokens.malformed, 10)
        malformed = tokens.malformed
        assert seen == list(range(FLOOD))
        tokens.close()
        push.close(0)
        context.term()
        return len(seen), turns, malformed

    count, turns, malformed = asyncio.run(run())
    assert count == FLOOD
    assert turns > 1
    assert malformed == 1


def test_control_answers_and_knows_who_is_gone(tmp_path: Path) -> None:
    """Sends in both directions at once: an edge-triggered descriptor must not lose a wake-up."""

    async def run() -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        answered = 0

        def on_message(peer: Peer, message: AnyMessage) -> None:
            nonlocal answered
            assert isinstance(message, Heartbeat)
            assert control.send(peer, message)
            answered += 1

        control = Control(context, f"ipc://{tmp_path}/control", on_message)
        assert not control.send(Peer(b"nobody"), Heartbeat(at_s=0.0))
        dealer = context.socket(zmq.DEALER)
        dealer.connect(control.address)
        got = 0
        for _ in range(100):
            dealer.send(encode(Heartbeat(at_s=1.0)))
            await until(lambda: dealer.poll(0), 10)
            dealer.recv()
            got += 1
        dealer.send_multipart([b"", b"three", b"frames"])
        await until(lambda: control.malformed, 10)
        control.close()
        dealer.close(0)
        context.term()
        assert answered == got
        return got

    assert asyncio.run(asyncio.wait_for(run(), 30)) == 100
