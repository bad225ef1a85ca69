"""A prefill and a decode instance of the model, and a coordinator between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from coral.core.operate.command import Await, Begin, Command, HandedOver
from coral.types.request import Token
from tests.core.operate.instance_model import MOST_MOVES, KvOnItsWay, ModelInstance, Shape, request_of


class Leg(ModelInstance):
    """One of the two instances; what it says goes to the pair's coordinator."""

    pair: Pair

    def say(self, command: Begin | Await | HandedOver) -> None:
        self.pair.told(self, command)

    def end(self, request: str, how: str) -> None:
        self.pair.leg_ended(self, request, how)

    def deliver(self, token: Token) -> None:
        self.pair.deliver(self, token)


class Pair:
    """Plays the coordinator. What it says to either instance arrives in order, and late."""

    def __init__(self, prefill: Leg, decode: Leg) -> None:
        self.prefill, self.decode = prefill, decode
        prefill.pair = decode.pair = self
        self.post: dict[Leg, deque[Callable[[], list[Command]]]] = {prefill: deque(), decode: deque()}
        self.asked: dict[str, int] = {}
        """Tokens wanted in all, by request."""
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.handed: set[str] = set()
        self.on_their_way: deque[KvOnItsWay] = deque()
        self.credits: deque[KvOnItsWay] = deque()
        self.now = 1000.0

    # ------------------------------------------------------------ the coordinator

    def submit(self, name: str, prompt: int, output: int, generated: int = 0, *, whole: bool = False) -> None:
        """`whole`: the first instance serves it alone, beside those that it hands over."""
        request = request_of(name, prompt, output, generated)
        self.asked[name] = output
        self.got[name] = list(request.generated)
        self.prefill.requests[name] = self.decode.requests[name] = request
        if whole:
            self.post[self.prefill].append(lambda: self.prefill.state.submit(request))
            return
        first = msgspec.structs.replace(request.sampling, max_tokens=generated + 1)
        leg = msgspec.structs.replace(request, sampling=first)
        self.post[self.prefill].append(lambda: self.prefill.state.submit(leg, "prefill"))

    def told(self, instance: Leg, command: Begin | Await | HandedOver) -> None:
        name = command.request
        if isinstance(command, HandedOver):
            assert instance is self.prefill
            assert name not in self.handed, "handed over twice"
            self.handed.add(name)
        elif name in self.ended:
            pass
        elif isinstance(command, Begin):
            assert instance is self.prefill
            request = self.decode.requests[name]
            self.post[self.decode].append(lambda: self.decode.state.submit(request, "decode"))
        else:
            assert instance is self.decode
            to = self.decode.destination(command)
            self.post[self.prefill].append(lambda: self.prefill.state.hand_over(name, to))

    def deliver(self, instance: Leg, token: Token) -> None:
        name, got = token.request, self.got[token.request]
        if name in self.ended:
            return
        assert token.position <= len(got), "a token was skipped"
        if token.position == len(got):
            got.append(token.token)
            if instance is self.prefill:
                self.post[self.decode].append(lambda: self.decode.state.go_on(name, (token.token,)))
        if len(got) == self.asked[name]:
            self.finish(name, "finished")

    def leg_ended(self, instance: Leg, name: str, how: str) -> None:
        """Refused or lost: a real coordinator would try elsewhere."""
        if name not in self.ended and not (instance is self.prefill and name in self.handed):
            self.finish(name, how)

    def finish(self, name: str, how: str) -> None:
        self.ended[name] = how
        for instance in (self.prefill, self.decode):
            self.post[instance].append(lambda instance=instance: instance.state.abort([name]))  # type: ignore[misc]

    # ------------------------------------------------------------ moves

    def moves(self) -> list[tuple[str, str, Leg]]:
        found: list[tuple[str, str, Leg]] = []
        if self.credits and not self.prefill.state.failed:
            found.append(("credit", "", self.prefill))
        found += [
            (kind, node, instance)
            for instance in (self.prefill, self.decode)
            for kind, node in instance.moves()
            if not instance.state.failed
        ]
        found += [("post", "", instance) for instance in self.post if self.post[instance]]
        if self.on_their_way and not self.decode.state.failed:
            found.append(("arrive", "", self.decode))
        return found

    def move(self, kind: str, node: str, instance: Leg) -> None:
        if kind == "post":
            instance.carry_out(self.post[instance].popleft()())
        elif kind == "arrive":
            part = self.on_their_way.popleft()
            self.decode.take_kv(part)
            self.credits.append(part)
        elif kind == "credit":
            self.prefill.credit(self.credits.popleft())
        else:
            instance.move(kind, node)
        self.on_their_way.extend(self.prefill.sent)
        self.prefill.sent.clear()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for instance in (self.prefill, self.decode):
            instance.carry_out(instance.state.expire(self.now))

    def cut_links(self) -> None:
        """Nobody takes what is on its way: its senders give it up."""
        while self.on_their_way:
            part = self.on_their_way.popleft()
            command = part.transfer.command
            self.prefill.credit(part)
            if not self.prefill.state.failed:
                failed = self.prefill.state.sequence_failed(
                    command.node, command.request, command.attempt, "its receiver takes nothing"
                )
                self.prefill.carry_out(failed)

    def run_to_the_end(self) -> None:
        for _ in range(MOST_MOVES):
            moves = self.moves()
            if not moves:
                return
            self.move(*moves[0])
        raise AssertionError("does not come to an end")


def pair_of(one: Shape, other: Shape, kv: int = 40, expected: int = 4) -> Pair:
    def leg(shape: Shape, name: str) -> Leg:
        return Leg(shape, {node: kv for stage in shape for node, _ in stage}, expected, name)

    return Pair(leg(one, "prefill"), leg(other, "decode"))
