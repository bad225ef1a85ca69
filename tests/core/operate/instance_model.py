"""A model of an instance's nodes, as its state machine may assume them, and of KV between instances."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from coral.core.operate.command import (
    Await,
    Begin,
    Command,
    Drained,
    Extend,
    HandedOver,
    Lose,
    Open,
    Refuse,
    Release,
    Resume,
    SendKv,
)
from coral.core.operate.instance_state import InstanceState
from coral.types.handover import KvDestination, KvNode
from coral.types.request import GenerateRequest, Leg, Sampling, Token
from coral.types.reservation import ReservationRule, blocks
from coral.types.stage import KvCapacity

BLOCK = 4
LAYERS = 6
PART = 5
"""Tokens of KV that go over at once."""
LEASE_S = 30.0

Shape = list[list[tuple[str, float]]]


def token_at(request: str, position: int) -> int:
    return zlib.crc32(f"{request} {position}".encode()) % 1000


def request_of(
    name: str, prompt: int, output: int, generated: int = 0, priority: float = 1.0
) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        model="m",
        prompt_ids=tuple(range(prompt)),
        sampling=Sampling(max_tokens=output),
        generated=tuple(token_at(name, position) for position in range(generated)),
        priority=priority,
    )


@dataclass(eq=False)
class Transfer:
    """KV of one attempt, from one node to the nodes of a destination."""

    command: SendKv
    known: int
    sent: dict[str, int]
    under_way: int = 0
    said: bool = False


@dataclass(eq=False)
class KvOnItsWay:
    """Tokens `[start, end)` of some layers; credit goes back to `transfer`."""

    instance: str
    node: str
    request: str
    attempt: int
    layers: range
    start: int
    end: int
    transfer: Transfer


@dataclass(eq=False)
class ModelNode:
    """Commands in order, answers in order."""

    name: str
    capacity: KvCapacity
    layers: range
    inbox: deque[Command] = field(default_factory=deque)
    data: deque[tuple[str, int, int]] = field(default_factory=deque)
    """(request, attempt, known): a sequence known up to `known` tokens wants the next one."""
    outbox: deque[tuple[str, Any]] = field(default_factory=deque)
    open: dict[str, Open] = field(default_factory=dict)
    reserve: dict[str, int] = field(default_factory=dict)
    kv: dict[str, dict[int, int]] = field(default_factory=dict)
    """Tokens whose KV is here, by open request and layer."""
    transfers: dict[str, Transfer] = field(default_factory=dict)
    cut: list[Transfer] = field(default_factory=list)
    """Replaced, with KV under way."""
    leaving: list[tuple[str, int]] = field(default_factory=list)
    leaving_blocks: dict[tuple[str, int], int] = field(default_factory=dict)

    def obey(self, command: Command) -> None:
        match command:
            case Open():
                request = command.request.id
                assert request not in self.open, "opened twice"
                self.open[request], self.reserve[request] = command, command.reserve
                self.kv[request] = dict.fromkeys(self.layers, 0)
                self.outbox.append(("opened", (self.name, request, command.attempt)))
                if command.route[0] == self.name and command.leg != "decode":
                    self.data.append((request, command.attempt, command.request.known))
            case Extend():
                assert self.open[command.request].attempt == command.attempt
                assert command.reserve > self.reserve[command.request]
                self.reserve[command.request] = command.reserve
            case SendKv():
                self._send_kv(command)
            case Resume():
                self._resume(command)
            case Release():
                for request, attempt in command.sequences:
                    if request in self.open and self.open[request].attempt == attempt:
                        self.leaving_blocks[request, attempt] = self.reserve[request]
                        del self.open[request], self.reserve[request], self.kv[request]
                        if request in self.transfers:
                            self.cut.append(self.transfers.pop(request))
                    self.leaving.append((request, attempt))
                self.let_go()
        held = [*self.reserve.values(), *self.leaving_blocks.values()]
        assert sum(blocks(tokens, BLOCK) for tokens in held) <= self.capacity.blocks, "over capacity"

    def _send_kv(self, command: SendKv) -> None:
        held = self.open[command.request]
        assert held.attempt == command.attempt
        assert held.leg == "prefill"
        if command.request in self.transfers:
            self.cut.append(self.transfers.pop(command.request))
        to = {
            n.node: 0 for n in command.to.nodes if set(self.layers) & set(range(n.first_layer, n.end_layer))
        }
        self.transfers[command.request] = Transfer(command, held.request.known, to)

    def _resume(self, command: Resume) -> None:
        held = self.open[command.request]
        assert held.attempt == command.attempt
        assert held.leg == "decode"
        known = held.request.known
        assert set(self.kv[command.request].values()) == {known}, "resumed without all of its KV"
        self.outbox.append(("opened", (self.name, command.request, command.attempt)))
        if held.route[0] == self.name:
            self.data.append((command.request, command.attempt, known + len(command.tokens)))

    def let_go(self) -> None:
        """Answer for what is released and no longer read by anybody."""
        for pair in list(self.leaving):
            read = (t for t in self.cut if (t.command.request, t.command.attempt) == pair)
            if not any(transfer.under_way for transfer in read):
                self.leaving.remove(pair)
                self.leaving_blocks.pop(pair, None)
                self.outbox.append(("released", (self.name, (pair,))))
        self.cut = [transfer for transfer in self.cut if transfer.under_way]


class ModelInstance:
    """An instance; whoever plays its coordinator overrides what it says to it."""

    def __init__(self, stages: Shape, kv: dict[str, int], expected: int, name: str = "i") -> None:
        self.name = name
        cuts = [LAYERS * s // len(stages) for s in range(len(stages) + 1)]
        self.nodes = {
            node: ModelNode(
                node,
                KvCapacity(blocks=kv[node], block_size=BLOCK, bytes=0),
                range(cuts[stage], cuts[stage + 1]),
            )
            for stage, nodes in enumerate(stages)
            for node, _ in nodes
        }
        self.state = InstanceState(
            stages,
            {name: node.capacity for name, node in self.nodes.items()},
            ReservationRule(expected_output_tokens=expected, extend_tokens=5),
            max_model_len=60,
            max_waiting=6,
            kv_lease_s=LEASE_S,
        )
        self.requests: dict[str, GenerateRequest] = {}
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.drained = 0
        self.sent: list[KvOnItsWay] = []
        """KV that has left and not arrived."""

    # ------------------------------------------------------------ the coordinator's part

    def submit(self, request: GenerateRequest, leg: Leg = "whole") -> None:
        self.requests[request.id] = request
        self.got.setdefault(request.id, list(request.generated))
        self.carry_out(self.state.submit(request, leg))

    def abort(self, request: str) -> None:
        if request not in self.ended:
            self.end(request, "aborted")
        self.carry_out(self.state.abort([request]))

    def end(self, request: str, how: str) -> None:
        if how == "lost" and self.ended.get(request) == "finished":
            return  # its last token was faster at the coordinator, which forgets what has finished
        assert request not in self.ended, f"{request} ended twice: {self.ended[request]}, {how}"
        self.ended[request] = how

    def deliver(self, token: Token) -> None:
        """The coordinator's view: straight from the last stage; doubles only where a replay overlaps."""
        got = self.got[token.request]
        assert token.position <= len(got), "a token was skipped"
        if token.position == len(got):
            got.append(token.token)
        if token.finish and token.request not in self.ended:
            self.end(token.request, "finished")

    def say(self, command: Begin | Await | HandedOver) -> None:
        raise AssertionError(f"no leg was asked for: {command}")

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Open() | Extend() | Release() | SendKv() | Resume():
                    self.nodes[command.node].inbox.append(command)
                case Refuse():
                    self.end(command.request, f"refused {command.status}")
                case Lose():
                    self.end(command.request, "lost")
                case Drained():
                    self.drained += 1
                case Begin() | Await() | HandedOver():
                    self.say(command)
        self.state.ledger.check()

    # ------------------------------------------------------------ moves

    def moves(self) -> list[tuple[str, str]]:
        found = []
        for name, node in self.nodes.items():
            found += [(kind, name) for kind in ("inbox", "outbox") if getattr(node, kind)]
            if any(self._runnable(name, item) for item in node.data):
                found.append(("data", name))
            if any(self._next_part(node, transfer) for transfer in node.transfers.values()):
                found.append(("kv", name))
        return found

    def move(self, kind: str, name: str) -> None:
        node = self.nodes[name]
        if kind == "inbox":
            node.obey(node.inbox.popleft())
        elif kind == "outbox":
            event, arguments = node.outbox.popleft()
            if event == "tokens":
                self.carry_out(self.state.tokens(arguments))
            else:
                self.carry_out(getattr(self.state, event)(*arguments))
        elif kind == "kv":
            parts = (self._next_part(node, transfer) for transfer in node.transfers.values())
            part = next(part for part in parts if part is not None)
            part.transfer.sent[part.node] = part.end
            part.transfer.under_way += 1
            self.sent.append(part)
        else:
            item = next(item for item in node.data if self._runnable(name, item))
            node.data.remove(item)
            self._run(name, *item)

    def _runnable(self, name: str, item: tuple[str, int, int]) -> bool:
        request, attempt, known = item
        node = self.nodes[name]
        held = node.open.get(request)
        return held is None or held.attempt != attempt or node.reserve[request] >= known

    def _run(self, name: str, request: str, attempt: int, known: int) -> None:
        node = self.nodes[name]
        held = node.open.get(request)
        if held is None or held.attempt != attempt:
            return  # stale
        node.kv[request] = dict.fromkeys(node.layers, known)
        where = held.route.index(name)
        if where + 1 < len(held.route):
            self.nodes[held.route[where + 1]].data.append((request, attempt, known))
            return
        position = known - len(held.request.prompt_ids)
        last = position + 1 >= held.request.sampling.max_tokens
        token = Token(
            request=request,
            attempt=attempt,
            position=position,
            token=token_at(request, position),
            finish="length" if last else None,
        )
        node.outbox.append(("tokens", [token]))
        self.deliver(token)
        if not last:
            self.nodes[held.route[0]].data.append((request, attempt, known + 1))

    # ------------------------------------------------------------ KV

    def _next_part(self, node: ModelNode, transfer: Transfer) -> KvOnItsWay | None:
        command = transfer.command
        here = min(node.kv[command.request].values())
        for to in command.to.nodes:
            start = transfer.sent.get(to.node, here)
            if start < min(here, transfer.known):
                layers = range(max(node.layers.start, to.first_layer), min(node.layers.stop, to.end_layer))
                end = min(start + PART, here, transfer.known)
                return KvOnItsWay(
                    command.to.instance,
                    to.node,
                    command.request,
                    command.to.attempt,
                    layers,
                    start,
                    end,
                    transfer,
                )
        return None

    def credit(self, part: KvOnItsWay) -> None:
        """The receiver has taken or dropped it, or the link to it was cut."""
        transfer, command = part.transfer, part.transfer.command
        transfer.under_way -= 1
        node = self.nodes[command.node]
        complete = not transfer.under_way and set(transfer.sent.values()) == {transfer.known}
        if complete and node.transfers.get(command.request) is transfer and not transfer.said:
            transfer.said = True
            node.outbox.append(("kv_sent", (node.name, command.request, command.attempt, command.to.key)))
        node.let_go()

    def take_kv(self, part: KvOnItsWay) -> None:
        """KV from another instance; what is not expected is dropped."""
        node = self.nodes.get(part.node)
        held = node.open.get(part.request) if node else None
        if node is None or held is None or (part.instance, part.attempt) != (self.name, held.attempt):
            return
        assert held.leg == "decode", "KV for a sequence that is computed here"
        here = node.kv[part.request]
        before = min(here.values())
        for layer in part.layers:
            assert part.start <= here[layer], "a gap in the KV"
            here[layer] = max(here[layer], part.end)
        if min(here.values()) > before:
            arrived = (node.name, part.request, part.attempt, min(here.values()))
            node.outbox.append(("kv_arrived", arrived))

    def destination(self, command: Await) -> KvDestination:
        return KvDestination(
            instance=self.name,
            generation=0,
            attempt=command.attempt,
            nodes=tuple(
                KvNode(
                    node=node,
                    first_layer=self.nodes[node].layers.start,
                    end_layer=self.nodes[node].layers.stop,
                    address="",
                )
                for node in command.route
            ),
        )


MOST_MOVES = 20_000


def run_to_the_end(one: ModelInstance) -> None:
    for _ in range(MOST_MOVES):
        moves = one.moves()
        if not moves:
            return
        one.move(*moves[0])
    raise AssertionError("does not come to an end")


SHAPES: list[Shape] = [
    [[("a", 1.0)]],
    [[("a", 1.0)], [("b", 1.0)]],
    [[("a", 1.0)], [("b", 2.0), ("c", 1.0)], [("d", 1.0)]],
    [[("a", 3.0), ("b", 1.0)], [("c", 1.0), ("d", 1.0)]],
]
