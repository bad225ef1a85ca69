"""The scheduler's state machine against a model of nodes, in random orders of everything that can happen."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from coral.core.operate.command import Command, Drained, Extend, Lose, Open, Refuse, Release
from coral.core.operate.instance_state import InstanceState
from coral.types.request import GenerateRequest, Sampling, Token
from coral.types.reservation import ReservationRule, blocks
from coral.types.stage import KvCapacity

BLOCK = 4
MOST_MOVES = 20_000


def token_at(request: str, position: int) -> int:
    return zlib.crc32(f"{request} {position}".encode()) % 1000


class ModelNode:
    """A node as the state machine may assume it: commands in order, answers in order."""

    def __init__(self, capacity: KvCapacity) -> None:
        self.capacity = capacity
        self.inbox: deque[Command] = deque()
        self.data: deque[tuple[str, int, int]] = deque()
        """(request, attempt, known): a sequence known up to `known` tokens wants the next one."""
        self.outbox: deque[tuple[str, Any]] = deque()
        self.open: dict[str, Open] = {}
        self.reserve: dict[str, int] = {}

    def obey(self, node: str, command: Command) -> None:
        match command:
            case Open():
                request = command.request.id
                assert request not in self.open, "opened twice"
                self.open[request], self.reserve[request] = command, command.reserve
                self.outbox.append(("opened", (node, request, command.attempt)))
                if command.route[0] == node:
                    self.data.append((request, command.attempt, command.request.known))
            case Extend():
                assert self.open[command.request].attempt == command.attempt
                assert command.reserve > self.reserve[command.request]
                self.reserve[command.request] = command.reserve
            case Release():
                for request, attempt in command.sequences:
                    if request in self.open and self.open[request].attempt == attempt:
                        del self.open[request], self.reserve[request]
                self.outbox.append(("released", (node, command.sequences)))
        assert sum(blocks(r, BLOCK) for r in self.reserve.values()) <= self.capacity.blocks, "over capacity"


class ModelInstance:
    def __init__(self, stages: list[list[tuple[str, float]]], kv: dict[str, int], expected: int) -> None:
        self.nodes = {node: ModelNode(KvCapacity(blocks=kv[node], block_size=BLOCK, bytes=0)) for node in kv}
        rule = ReservationRule(expected_output_tokens=expected, extend_tokens=5)
        self.state = InstanceState(
            stages,
            {name: node.capacity for name, node in self.nodes.items()},
            rule,
            max_model_len=60,
            max_waiting=6,
        )
        self.requests: dict[str, GenerateRequest] = {}
        self.got: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.drained = 0

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Open() | Extend() | Release():
                    self.nodes[command.node].inbox.append(command)
                case Refuse():
                    self._end(command.request, f"refused {command.status}")
                case Lose():
                    self._end(command.request, "lost")
                case Drained():
                    self.drained += 1
        self.state.ledger.check()

    def _end(self, request: str, how: str) -> None:
        if how == "lost" and self.ended.get(request) == "finished":
            return  # its last token was faster at the coordinator, which forgets what has finished
        assert request not in self.ended, f"{request} ended twice: {self.ended[request]}, {how}"
        self.ended[request] = how

    def submit(self, request: GenerateRequest) -> None:
        self.requests[request.id] = request
        self.got[request.id] = list(request.generated)
        self.carry_out(self.state.submit(request))

    def abort(self, request: str) -> None:
        if request not in self.ended:
            self._end(request, "aborted")
        self.carry_out(self.state.abort([request]))

    def moves(self) -> list[tuple[str, str]]:
        found = []
        for name, node in self.nodes.items():
            found += [(kind, name) for kind in ("inbox", "outbox") if getattr(node, kind)]
            if any(self._runnable(name, item) for item in node.data):
                found.append(("data", name))
        return found

    def _runnable(self, name: str, item: tuple[str, int, int]) -> bool:
        request, attempt, known = item
        node = self.nodes[name]
        held = node.open.get(request)
        return held is None or held.attempt != attempt or node.reserve[request] >= known

    def move(self, kind: str, name: str) -> None:
        node = self.nodes[name]
        if kind == "inbox":
            node.obey(name, node.inbox.popleft())
        elif kind == "outbox":
            event, arguments = node.outbox.popleft()
            if event == "tokens":
                self.carry_out(self.state.tokens(arguments))
            else:
                self.carry_out(getattr(self.state, event)(*arguments))
        else:
            item = next(item for item in node.data if self._runnable(name, item))
            node.data.remove(item)
            self._run(name, *item)

    def _run(self, name: str, request: str, attempt: int, known: int) -> None:
        node = self.nodes[name]
        held = node.open.get(request)
        if held is None or held.attempt != attempt:
            return  # stale
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
        self._deliver(token)
        if not last:
            self.nodes[held.route[0]].data.append((request, attempt, known + 1))

    def _deliver(self, token: Token) -> None:
        """The coordinator's view: straight from the last stage; doubles only where a replay overlaps."""
        got = self.got[token.request]
        assert token.position <= len(got), "a token was skipped"
        if token.position == len(got):
            got.append(token.token)
        if token.finish and token.request not in self.ended:
            self._end(token.request, "finished")


def ids(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def request_of(name: str, prompt: int, output: int, generated: int = 0) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        model="m",
        prompt_ids=ids(prompt),
        sampling=Sampling(max_tokens=output),
        generated=tuple(token_at(name, position) for position in range(generated)),
    )


SHAPES: list[list[list[tuple[str, float]]]] = [
    [[("a", 1.0)]],
    [[("a", 1.0)], [("b", 1.0)]],
    [[("a", 1.0)], [("b", 2.0), ("c", 1.0)], [("d", 1.0)]],
    [[("a", 3.0), ("b", 1.0)], [("c", 1.0), ("d", 1.0)]],
]


# Shrinking may take Hypothesis five minutes, as long as a test may run here: a failure must be told instead.
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.data())
def test_blocks_are_conserved_tokens_complete_and_every_request_ends(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    kv = {node: data.draw(st.integers(4, 14), label=f"kv {node}") for stage in shape for node, _ in stage}
    one = ModelInstance(shape, kv, expected=data.draw(st.integers(1, 12)))
    count = 0
    for _ in range(data.draw(st.integers(5, 120), label="steps")):
        action = data.draw(st.integers(0, 19))
        moves = one.moves()
        if action < 3 and count < 12:
            output = data.draw(st.integers(1, 24))
            done = data.draw(st.integers(0, 3))
            name = f"r{count}"
            one.submit(request_of(name, data.draw(st.integers(1, 20)), output, min(done, output - 1)))
            count += 1
        elif action == 3 and count:
            one.abort(f"r{data.draw(st.integers(0, count - 1))}")
        elif action == 4 and count:
            name = f"r{data.draw(st.integers(0, count - 1))}"
            node = data.draw(st.sampled_from(sorted(kv)))
            held = one.nodes[node].open.get(name)
            if held is not None:
                one.carry_out(one.state.sequence_failed(node, name, held.attempt, "told to"))
        elif moves:
            one.move(*data.draw(st.sampled_from(moves)))
    if data.draw(st.booleans(), label="a node fails"):
        one.carry_out(one.state.node_failed("killed"))
        assert one.state.idle
        assert one.state.ledger.idle
        assert set(one.ended) == set(one.requests)
        return
    one.carry_out(one.state.drain())
    run_to_the_end(one)
    assert one.state.idle, f"stuck: {one.state.running} running, {one.state.waiting} waiting"
    assert one.state.ledger.idle
    assert one.drained == 1
    assert set(one.ended) == set(one.requests)
    for name, how in one.ended.items():
        if how == "finished":
            total = one.requests[name].sampling.max_tokens
            assert one.got[name] == [token_at(name, position) for position in range(total)]
    assert not any(model.open for model in one.nodes.values())


def run_to_the_end(one: ModelInstance) -> None:
    for _ in range(MOST_MOVES):
        moves = one.moves()
        if not moves:
            return
        one.move(*moves[0])
    raise AssertionError("does not come to an end")


def test_a_full_node_preempts_the_youngest_and_all_finish() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=1)
    for number in range(3):
        one.submit(request_of(f"r{number}", 6, 20))
    run_to_the_end(one)
    assert one.state.preemptions > 0
    assert set(one.ended.values()) == {"finished"}
    assert one.state.ledger.idle


def test_a_loss_may_follow_the_last_token_that_the_scheduler_has_not_heard_of() -> None:
    one = ModelInstance(SHAPES[0], {"a": 8}, expected=4)
    one.submit(request_of("r0", 4, 2))
    while "r0" not in one.ended:
        one.move(*one.moves()[-1])  # the node runs on; what it answers waits
    assert one.ended == {"r0": "finished"}
    lost = one.state.node_failed("killed")
    assert lost == [Lose("r0", "killed")]
    one.carry_out(lost)
    assert one.ended == {"r0": "finished"}


def test_the_first_finishes_first_under_pressure() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=1)
    for number in range(3):
        one.submit(request_of(f"r{number}", 6, 20))
    run_to_the_end(one)
    assert list(one.ended) == ["r0", "r1", "r2"]


@pytest.mark.parametrize(
    ("prompt", "output", "words"),
    [(0, 4, "prompt is empty"), (30, 3, "at most 32 tokens"), (4, 0, "nothing is left")],
)
def test_what_can_never_be_served_is_refused_with_the_reason(prompt: int, output: int, words: str) -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 100}, expected=4)
    (refused,) = one.state.submit(request_of("r", prompt, output))
    assert isinstance(refused, Refuse)
    assert refused.status == 400
    assert words in refused.reason


def test_the_queue_is_bounded() -> None:
    one = ModelInstance(SHAPES[0], {"a": 4}, expected=4)
    for number in range(8):
        one.submit(request_of(f"r{number}", 10, 6))
    assert one.state.running == 1
    assert one.state.waiting == 6
    assert one.ended == {"r7": "refused 503"}


def test_a_request_past_its_deadline_does_not_wait_on() -> None:
    one = ModelInstance(SHAPES[0], {"a": 4}, expected=4)
    one.submit(request_of("r0", 10, 6))
    late = GenerateRequest(
        id="r1", model="m", prompt_ids=ids(10), sampling=Sampling(max_tokens=6), deadline_s=100.0
    )
    one.submit(late)
    one.carry_out(one.state.expire(99.0))
    assert not one.ended
    one.carry_out(one.state.expire(101.0))
    assert one.ended == {"r1": "refused 503"}
    run_to_the_end(one)
    assert one.ended["r0"] == "finished"


def test_a_node_that_cannot_open_loses_the_request_and_gives_back_its_blocks() -> None:
    one = ModelInstance(SHAPES[1], {"a": 8, "b": 8}, expected=4)
    (opened,) = one.state.submit(request_of("r0", 6, 6))
    assert isinstance(opened, Open)
    assert opened.node == "b"
    (release,) = one.state.opened("b", "r0", opened.attempt, error="no")
    assert isinstance(release, Release)
    (lost,) = one.state.released("b", release.sequences)
    assert isinstance(lost, Lose)
    assert "node b cannot open it: no" in lost.reason
    assert one.state.ledger.idle
