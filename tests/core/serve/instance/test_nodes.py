"""The scheduler's line to a worker that has said why it fails, and is gone before that is read."""

from __future__ import annotations

import time
from pathlib import Path

import zmq

from coral.core.serve.instance.nodes import NodeLost, Nodes
from coral.core.serve.net.plane import Plane
from coral.core.serve.net.transport import Dealer
from coral.core.serve.net.wire import Heartbeat, Tokens, WorkerFailed
from coral.testing.waiting import wait_until


def test_a_node_that_is_gone_when_it_is_told_something_has_said_why(tmp_path: Path) -> None:
    with zmq.Context() as context:
        nodes = Nodes(context, Plane(context, None, host="", sockets=str(tmp_path)), silence_s=5.0)
        worker = Dealer(context, nodes.address, identity="s0n0")
        nodes.joined("s0n0", time.monotonic())
        worker.send(Tokens(instance="i", node="s0n0", tokens=()))
        worker.send(WorkerFailed(node="s0n0", reason="step 3 fails"))
        wait_until(lambda: nodes.socket.poll(0) & zmq.POLLIN != 0, 10, "the first message")
        worker.close()

        def gone() -> bool:
            try:
                nodes.send("s0n0", Heartbeat(at_s=0.0))
            except NodeLost:
                return True
            return False

        try:
            for _, message in nodes.drain(time.monotonic()):
                assert isinstance(message, Tokens)  # its answer would be what does not reach the node
                break
            wait_until(gone, 10, "the connection closed")
            assert nodes.last_words("s0n0", time.monotonic()) == "step 3 fails"
            assert nodes.last_words("s0n0", time.monotonic()) == ""
        finally:
            nodes.close()
