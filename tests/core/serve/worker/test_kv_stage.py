"""One prefill and one decode node in this process, on a real model: who may write where, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq

from coral.core.plugins import load_plugins
from coral.core.serve.net import wire
from coral.core.serve.net.channel import Received, ReceivedKv
from coral.core.serve.net.zmq_channel import ZmqChannel
from coral.core.serve.worker.first_stage import FirstStage
from coral.errors import NoRoom
from coral.testing.instance import stages
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until
from coral.types.handover import KvDestination, KvNode
from coral.types.request import GenerateRequest, Leg, Sampling, Token
from coral.types.stage import Buffer, StageSpec

pytest.importorskip("torch", reason="the torch engine needs torch")

CACHE = Path(__file__).parents[4] / ".cache" / "tests"
BLOCKS = 24
BLOCK = 8
LEASE_S = 5.0


class Node:
    """A stage at work with its channel; what it says is kept."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], spec: StageSpec, bind: str) -> None:
        self.spec = spec
        self.runner = load_plugins(()).load_stage(spec)
        self.channel = ZmqChannel(context, node=spec.node, bind=bind, kv_window=4)
        self.channel.join(spec.instance, spec.generation)
        self.stage = FirstStage(spec, self.runner, self, self.channel)
        self.said: list[wire.Message] = []
        self.sampled: list[Token] = []

    def rows(self, to: str, parts: Sequence[wire.RowsPart], dtype: str, width: int, payload: Buffer) -> None:
        raise AssertionError("a single stage sends no rows")

    def feed(self, to: str, tokens: Sequence[wire.FedToken]) -> None:
        raise AssertionError("a single stage feeds nobody")

    def used(self, header: wire.Rows) -> None:
        raise AssertionError("a single stage gets no rows")

    def tokens(self, tokens: Sequence[Token]) -> None:
        self.sampled += tokens

    def say(self, message: wire.Message) -> None:
        self.said.append(message)

    def open(self, request: GenerateRequest, leg: Leg = "whole", reserve: int = 0) -> None:
        message = wire.OpenSequence(
            request=request, attempt=0, reserve=reserve or request.known + 8, route=(self.spec.node,), leg=leg
        )
        assert self.stage.open(message).error == ""

    def run(self) -> None:
        while self.stage.ready:
            self.stage.step()

    def receive(self, count: int) -> list[ReceivedKv]:
        """KV that is here, not taken in yet."""
        found: list[ReceivedKv | Received] = []

        def all_here() -> bool:
            found.extend(self.channel.receive(count - len(found)))
            return len(found) == count

        wait_until(all_here, 5, "KV")
        return [one for one in found if isinstance(one, ReceivedKv)]

    def release(self, request: str) -> None:
        self.stage.release(wire.ReleaseSequences(sequences=((request, 0),)))

    def destination(self) -> KvDestination:
        held = KvNode(
            node=self.spec.node,
            first_layer=self.spec.first_layer,
            end_layer=self.spec.end_layer,
            address=self.channel.address,
        )
        return KvDestination(
            instance=self.spec.instance, generation=self.spec.generation, attempt=0, nodes=(held,)
        )

    def kv_of(self, request: GenerateRequest) -> list[bytes]:
        lease = self.runner.export_kv(request.id, (0, self.spec.layers_total), (0, request.known))
        found = [bytes(data) for section in lease.piece.sections for data in (section.k, section.v)]
        lease.done()
        return found

    def heard(self, kind: type[wire.Message]) -> list[wire.Message]:
        return [message for message in self.said if isinstance(message, kind)]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    folder = make_tiny("mistral", CACHE / "tiny" / "mistral")
    made: list[Node] = []
    with zmq.Context() as context:

        def node(name: str) -> Node:
            ((stage,),) = stages(
                cuts=(4,),
                nodes=(1,),
                engine="torch",
                source=str(folder),
                options={"kv_blocks": BLOCKS, "block_size": BLOCK},
                max_model_len=192,
                step_tokens=64,
                memory_bytes=16 << 30,
                instance=name,
                prefix=f"{name}/",
            )
            made.append(Node(context, stage[0], f"ipc://{tmp_path}/{len(made)}"))
            return made[-1]

        yield node
        for one in made:
            one.stage.close()
            one.runner.close()
            one.channel.close()


def asked(name: str, prompt: int, output: int = 6) -> GenerateRequest:
    ids = tuple(4 + (31 * i + 7 * ord(name[0])) % 250 for i in range(prompt))
    return GenerateRequest(
        id=name, model="model", prompt_ids=ids, sampling=Sampling(temperature=0.0, max_tokens=output)
    )


def first_token_of(request: GenerateRequest) -> GenerateRequest:
    return msgspec.structs.replace(request, sampling=Sampling(temperature=0.0, max_tokens=1))


def order(request: GenerateRequest, to: Node) -> wire.SendKv:
    return wire.SendKv(request=request.id, attempt=0, to=to.destination(), lease_s=LEASE_S)


def test_what_still_comes_for_a_sequence_that_has_left_is_written_into_nobody(
    make: Callable[[str], Node],
) -> None:
    """The canary: a neighbour has taken over the blocks that a slow writer was filling."""
    writer, reader, alone = make("p"), make("d"), make("alone")
    gone, canary = asked("a", 150), asked("b", 180)
    alone.open(canary)
    alone.run()
    writer.open(first_token_of(gone), leg="prefill", reserve=151)
    reader.open(gone, leg="decode", reserve=160)
    writer.stage.send_kv(order(gone, reader), 0.0)
    while writer.stage.ready:
        writer.stage.step()
        writer.stage.hand_over(0.0)  # three messages are under way
    early, *late = reader.receive(3)
    reader.stage.take_kv(early)
    assert [message.tokens for message in reader.heard(wire.KvArrived)] == [64]  # type: ignore[attr-defined]
    reader.release("a")
    assert reader.heard(wire.SequencesReleased), "nothing is written into its blocks any more"
    reader.open(canary, reserve=BLOCKS * BLOCK)  # every block there is
    reader.run()
    before = reader.kv_of(canary)
    for one in late:
        reader.stage.take_kv(one)
    assert reader.kv_of(canary) == before
    assert [token.token for token in reader.sampled] == [token.token for token in alone.sampled]
    assert len(reader.heard(wire.KvArrived)) == 1
    wait_until(lambda: settled(writer), 5, "all is credited, also what was dropped")


def settled(node: Node, now: float = 0.0) -> bool:
    node.channel.receive()
    node.stage.hand_over(now)
    return bool(node.heard(wire.KvSent))


def test_blocks_that_a_slow_reader_still_reads_are_not_given_to_others(make: Callable[[str], Node]) -> None:
    writer, reader = make("p"), make("d")
    gone, next_one = asked("a", 150), asked("b", 100)
    writer.open(first_token_of(gone), leg="prefill", reserve=151)
    reader.open(gone, leg="decode", reserve=160)
    writer.stage.send_kv(order(gone, reader), 0.0)
    writer.run()
    sent = writer.kv_of(gone)
    while writer.stage.hand_over(0.0):
        pass
    writer.release("a")
    assert not writer.heard(wire.SequencesReleased)
    assert writer.runner.stats().free_blocks == BLOCKS - 19
    with pytest.raises(NoRoom):
        writer.runner.open(next_one, 100)
    for received in reader.receive(2):
        reader.stage.take_kv(received)
    assert reader.kv_of(gone) == sent
    writer.said.clear()

    def let_go() -> bool:
        writer.channel.receive()
        writer.stage.hand_over(0.0)
        return bool(writer.heard(wire.SequencesReleased))

    wait_until(let_go, 5, "credited")
    assert not writer.heard(wire.KvSent), "it was released: nobody waits for that"
    writer.open(next_one)
    writer.run()


def test_a_reader_that_takes_nothing_holds_no_block_past_the_lease(make: Callable[[str], Node]) -> None:
    writer, reader = make("p"), make("d")
    for name in ("a", "b"):
        writer.open(first_token_of(asked(name, 80)), leg="prefill", reserve=81)
        writer.stage.send_kv(order(asked(name, 80), reader), 0.0)
    writer.run()
    while writer.stage.hand_over(1.0):
        pass
    writer.release("a")
    writer.stage.hand_over(LEASE_S)
    assert not writer.said
    writer.stage.hand_over(LEASE_S + 1.1)
    assert not writer.said, "what came while a step ran is looked at first"
    writer.stage.hand_over(LEASE_S + 1.2)
    failed, released = writer.said
    assert isinstance(failed, wire.SequenceFailed)
    assert (failed.request, failed.reason) == ("b", "d/s0n0 has taken no KV for 5 s")
    assert isinstance(released, wire.SequencesReleased)
    writer.release("b")
    assert writer.runner.stats().free_blocks == BLOCKS
    assert len(writer.channel.sockets) == 1, "the link is cut"


def test_a_reader_that_never_gets_to_take_anything_is_given_up_as_well(
    make: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the connection for payloads never comes to stand: there is no credit from the start."""
    writer, reader = make("p"), make("d")
    monkeypatch.setattr(writer.channel, "may_send_to", lambda node: False)
    writer.open(first_token_of(asked("a", 80)), leg="prefill", reserve=81)
    writer.stage.send_kv(order(asked("a", 80), reader), 0.0)
    writer.stage.hand_over(2 * LEASE_S)
    assert not writer.said, "there is nothing to be sent yet"
    writer.run()
    writer.stage.hand_over(10 * LEASE_S)
    writer.stage.hand_over(11 * LEASE_S)
    assert not writer.said
    writer.stage.hand_over(11 * LEASE_S + 0.1)
    writer.stage.hand_over(11 * LEASE_S + 0.2)
    (failed,) = writer.said
    assert isinstance(failed, wire.SequenceFailed)
    writer.release("a")
    assert writer.runner.stats().free_blocks == BLOCKS


def test_a_link_that_nobody_needs_is_cut_after_a_while(make: Callable[[str], Node]) -> None:
    writer, reader = make("p"), make("d")
    for round_ in range(2):
        writer.open(first_token_of(asked("a", 30)), leg="prefill", reserve=31)
        writer.stage.send_kv(order(asked("a", 30), reader), 100.0 * round_)
        writer.run()
        writer.stage.hand_over(100.0 * round_)
        for received in reader.receive(1):
            reader.stage.take_kv(received)
        wait_until(lambda r=round_: settled(writer, 100.0 * r), 5, "sent")  # type: ignore[misc]
        assert len(writer.channel.sockets) == 2
        writer.release("a")
        writer.said.clear()
        writer.stage.hand_over(100.0 * round_ + 61)
        assert len(writer.channel.sockets) == 1


def test_decode_goes_on_from_kv_that_was_taken_over(make: Callable[[str], Node]) -> None:
    writer, reader, alone = make("p"), make("d"), make("alone")
    request = asked("a", 150)
    alone.open(request)
    alone.run()
    writer.open(first_token_of(request), leg="prefill", reserve=151)
    reader.open(request, leg="decode")
    writer.stage.send_kv(order(request, reader), 0.0)
    writer.run()
    while writer.stage.hand_over(0.0):
        pass
    for received in reader.receive(2):
        reader.stage.take_kv(received)
    assert not reader.stage.ready, "nothing runs before it is told what was sampled"
    (first,) = writer.sampled
    stale = wire.ResumeSequence(request="a", attempt=7, tokens=(first.token,))
    assert reader.stage.resume(stale) is None
    answer = reader.stage.resume(msgspec.structs.replace(stale, attempt=0))
    assert answer is not None
    assert answer.error == ""
    reader.run()
    assert [t.token for t in (first, *reader.sampled)] == [t.token for t in alone.sampled]
    assert [t.position for t in reader.sampled] == [1, 2, 3, 4, 5]


def test_what_cannot_resume_says_so(make: Callable[[str], Node]) -> None:
    reader = make("d")
    reader.open(asked("a", 40), leg="decode")
    answer = reader.stage.resume(wire.ResumeSequence(request="a", attempt=0, tokens=(5,)))
    assert answer is not None
    assert "0 of 40 tokens are here" in answer.error
    assert not reader.stage.ready
