from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from coral.core.serve.coordinator.requests import RequestOptions, RequestTable
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import Abort, Message, Submit, Tokens
from coral.errors import RequestError
from coral.hookspecs.router import Candidate, RouteRequest
from coral.types.hardware import Domain
from coral.types.request import FinishReason, GenerateRequest, Sampling, Token

HERE = Domain("local", "here")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FirstRouter:
    """Always the first; counts picks and dones."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()

    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        self.open[request.id] += 1
        return among[0]

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        self.open[request.id] -= 1
        assert self.open[request.id] >= 0, "done without a pick"


class Events:
    def __init__(self) -> None:
        self.finished: list[tuple[str, str, int]] = []

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        self.finished.append((request, finish, output_tokens))


class Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.error: RequestError | None = None
        self.finish: str | None = None

    def on_tokens(self, tokens: Sequence[Token]) -> None:
        assert self.finish is None
        assert self.error is None
        assert [token.position for token in tokens] == list(
            range(len(self.tokens), len(self.tokens) + len(tokens))
        )
        self.tokens += [token.token for token in tokens]
        self.finish = tokens[-1].finish

    def on_error(self, error: RequestError) -> None:
        assert self.error is None
        self.error = error


class Instance:
    def __init__(self, table: RequestTable, name: str, *, reachable: bool = True, room: int = 100) -> None:
        self.sent: list[Message] = []
        self.name = name
        self.target = Target(
            name,
            "m",
            1.0,
            self.send,
            max_request_tokens=room,
            expected_output_tokens=20,
            kv_tokens=1000,
            domain=HERE,
        )
        self.reachable = reachable
        self.table = table
        table.admit(self.target)

    def send(self, message: Message) -> bool:
        if self.reachable:
            self.sent.append(message)
        return self.reachable

    def submitted(self) -> list[GenerateRequest]:
        return [message.request for message in self.sent if isinstance(message, Submit)]

    @property
    def name_of_last(self) -> str:
        """What the last request that was sent here is called on the wire."""
        return self.submitted()[-1].id

    def say(self, request: str, position: int, finish: FinishReason | None = None) -> None:
        token = Token(request=request, attempt=0, position=position, token=100 + position, finish=finish)
        self.table.tokens(Tokens(instance=self.name, node="n", tokens=(token,)))


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def router() -> FirstRouter:
    return FirstRouter()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(events: Events, router: FirstRouter, clock: Clock) -> RequestTable:
    return RequestTable({"m": router}, events, RequestOptions(max_inflight=3), now=clock)


def request(id: str = "r", model: str = "m") -> GenerateRequest:
    return GenerateRequest(id=id, model=model, prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=8))


def test_tokens_reach_the_sink_once_and_in_order(
    table: RequestTable, events: Events, router: FirstRouter
) -> None:
    one, sink = Instance(table, "a"), Sink()
    table.submit(request(), sink)
    for position in (0, 1, 1, 0, 3, 2):  # doubles of a replay; 3 before 2 from another node
        one.say("r", position)
    assert sink.tokens == [100, 101, 102, 103]
    one.say("r", 4, "stop")
    one.say("r", 5)
    assert (sink.tokens[-1], sink.finish) == (104, "stop")
    assert events.finished == [("r", "stop", 5)]
    assert table.in_flight == 0
    assert router.open == {"r": 0}
    assert one.target.running == 0
    assert table.counters.doubles == 2


def test_unknown_model_none_ready_and_too_many(table: RequestTable) -> None:
    with pytest.raises(RequestError) as unknown:
        table.submit(request(model="x"), Sink())
    assert (unknown.value.status, unknown.value.code) == (404, "model_not_found")
    with pytest.raises(RequestError) as none:
        table.submit(request(), Sink())
    assert none.value.status == 503
    assert none.value.retry_after_s is not None
    Instance(table, "a")
    for i in range(3):
        table.submit(request(f"r{i}"), Sink())
    with pytest.raises(RequestError) as many:
        table.submit(request("r3"), Sink())
    assert (many.value.status, many.value.retry_after_s is not None) == (429, True)


def test_a_request_goes_on_elsewhere_from_what_it_has(table: RequestTable, router: FirstRouter) -> None:
    a, b, sink = Instance(table, "a"), Instance(table, "b"), Sink()
    table.submit(request(), sink)
    a.say("r", 0)
    a.say("r", 1)
    table.move_requests("a", "killed")
    [again] = b.submitted()
    assert again.generated == (100, 101)
    a.say("r", 2)  # late, from the dead
    assert sink.tokens == [100, 101]
    b.say(again.id, 2)
    b.say(again.id, 3, "length")
    assert sink.tokens == [100, 101, 102, 103]
    assert sink.error is None
    assert router.open == {"r": 0}
    assert (a.target.running, b.target.running) == (0, 0)


def test_without_another_instance_it_waits_for_the_successor(table: RequestTable) -> None:
    a, sink = Instance(table, "a"), Sink()
    table.submit(request(), sink)
    a.say("r", 0)
    table.move_requests("a", "node died")
    assert (table.stranded, table.in_flight, a.target.running) == (1, 1, 0)
    with pytest.raises(RequestError):
        table.submit(request("new"), Sink())  # who is not in yet is told to come again
    b = Instance(table, "b")
    assert [one.generated for one in b.submitted()] == [(100,)]
    b.say(b.name_of_last, 1, "length")
    assert (sink.tokens, sink.error) == ([100, 101], None)
    assert (table.stranded, table.in_flight) == (0, 0)


def test_whose_client_leaves_while_it_waits_is_forgotten(table: RequestTable, events: Events) -> None:
    Instance(table, "a")
    table.submit(request(), Sink())
    table.move_requests("a", "node died")
    table.abort("r")
    assert (table.stranded, table.in_flight) == (0, 0)
    assert events.finished == [("r", "abort", 0)]
    assert Instance(table, "b").sent == []


def test_at_the_end_those_that_wait_are_told(table: RequestTable) -> None:
    Instance(table, "a")
    sink = Sink()
    table.submit(request(), sink)
    table.move_requests("a", "node died")
    table.fail_all("shutting down")
    assert sink.error is not None
    assert sink.error.status == 503
    assert table.stranded == 0


def test_moves_are_bounded(table: RequestTable) -> None:
    instances, sink = [Instance(table, name) for name in "abcdefghijkl"], Sink()
    table.submit(request(), sink)
    for one in instances:
        table.move_requests(one.name, "killed\nTraceback of a process")
    assert sink.error is not None
    assert "killed" in str(sink.error)
    assert "Traceback" not in str(sink.error), "a log is for operators"
    assert sum(len(one.submitted()) for one in instances) == 1 + RequestOptions().retries_per_request


def test_a_request_goes_only_where_all_of_it_fits(table: RequestTable) -> None:
    small, large = Instance(table, "a", room=10), Instance(table, "b", room=11)
    table.submit(request(), Sink())  # 3 of the prompt, 8 to generate
    assert (len(small.submitted()), len(large.submitted())) == (0, 1)
    table.stop_admitting("b")
    with pytest.raises(RequestError, match="that can hold this request") as none:
        table.submit(request("q"), Sink())
    assert none.value.status == 503


def test_one_without_a_limit_of_its_own_gets_the_room_of_its_instance(table: RequestTable) -> None:
    cramped, small, large = (Instance(table, n, room=r) for n, r in (("a", 22), ("b", 23), ("c", 50)))
    sink = Sink()
    table.submit(
        GenerateRequest(
            id="r", model="m", prompt_ids=(1, 2, 3), sampling=Sampling(max_tokens=47), open_ended=True
        ),
        sink,
    )
    assert cramped.sent == []  # no room for an answer of the expected length
    [sent] = small.submitted()
    assert sent.sampling.max_tokens == 20
    small.say("r", 0)
    table.move_requests("b", "killed")
    [again] = large.submitted()
    assert (again.sampling.max_tokens, again.generated) == (47, (100,))
    assert sink.error is None


def test_a_router_that_fails_with_one_request_keeps_no_other_from_going_on(events: Events) -> None:
    class Picky(FirstRouter):
        def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
            if request.id == "bad" and among[0].id == "b":
                raise ValueError("broken router")
            return super().pick(request, among, now)

    class Broken(Sink):
        def on_error(self, error: RequestError) -> None:
            super().on_error(error)
            raise ValueError("broken sink")

    table = RequestTable({"m": Picky()}, events, RequestOptions(max_inflight=3), now=lambda: 0.0)
    Instance(table, "a")
    bad, good = Broken(), Sink()
    table.submit(request("bad"), bad)
    table.submit(request("good"), good)
    b = Instance(table, "b")
    table.move_requests("a", "killed")
    assert [one.id for one in b.submitted()] == ["good~1"]
    assert bad.error is not None
    assert bad.error.status == 503
    assert table.in_flight == 1


def test_a_request_that_is_too_long_is_told_the_limit(table: RequestTable) -> None:
    a, b, sink = Instance(table, "a"), Instance(table, "b"), Sink()
    table.submit(request(), sink)
    table.refused("r", "a", 400, "too long: the limit is 7 tokens")
    assert sink.error is not None
    assert (sink.error.status, "7 tokens" in str(sink.error)) == (400, True)
    assert b.sent == []
    assert a.target.running == b.target.running == 0


def test_whoever_finds_a_scheduler_full_goes_elsewhere_or_waits(table: RequestTable, clock: Clock) -> None:
    a, b, sink = Instance(table, "a"), Instance(table, "b"), Sink()
    table.submit(request(), sink)
    table.refused("r", "a", 503, "queue full")
    assert len(b.submitted()) == 1, "the other one is asked"
    table.refused(b.name_of_last, "b", 503, "queue full")
    assert (table.stranded, sink.error) == (1, None), "both are full: it waits"
    clock.now += 2.0
    table.tick()
    assert len(a.submitted()) == 2, "and is sent when there may be room again"
    assert (a.target.running, b.target.running, table.counters.moved) == (1, 0, 0)


def test_an_instance_that_cannot_be_reached_is_passed_over(table: RequestTable, router: FirstRouter) -> None:
    Instance(table, "a", reachable=False)
    b = Instance(table, "b")
    table.submit(request(), Sink())
    assert len(b.submitted()) == 1
    assert router.open == {"r": 1}


def test_abort_tells_the_scheduler_and_never_the_sink(table: RequestTable, events: Events) -> None:
    a, sink = Instance(table, "a"), Sink()
    table.submit(request(), sink)
    table.abort("r")
    table.abort("r")
    table.abort("unknown")
    a.say("r", 0)
    assert [m for m in a.sent if isinstance(m, Abort)] == [Abort(requests=("r",))]
    assert (sink.tokens, sink.error) == ([], None)
    assert events.finished == [("r", "abort", 0)]


def test_a_sink_that_fails_costs_no_other_its_tokens(table: RequestTable) -> None:
    class Broken(Sink):
        def on_tokens(self, tokens: Sequence[Token]) -> None:
            raise ValueError("broken sink")

    Instance(table, "a")
    good = Sink()
    table.submit(request("bad"), Broken())
    table.submit(request("good"), good)
    both = tuple(Token(request=id, attempt=0, position=0, token=1) for id in ("bad", "good"))
    table.tokens(Tokens(instance="a", node="n", tokens=both))
    assert good.tokens == [1]
    assert table.in_flight == 1


@pytest.mark.parametrize("seed", range(20))
def test_counters_never_go_negative_and_are_zero_when_idle(seed: int) -> None:
    """Random failures, moves, aborts and instances that come and go (cases: leaking in-flight counts)."""
    rng = random.Random(seed)
    router, events = FirstRouter(), Events()
    clock = Clock()
    table = RequestTable({"m": router}, events, RequestOptions(max_inflight=20), now=clock)
    instances: list[Instance] = []
    sinks: dict[str, Sink] = {}
    refused = 0
    for step in range(400):
        match rng.randrange(8):
            case 0 if len(instances) < 4:
                instances.append(Instance(table, f"i{step}"))
            case 1 if instances:
                gone = instances.pop(rng.randrange(len(instances)))
                table.move_requests(gone.name, "killed")
                assert gone.target.running == 0
            case 2 if sinks:
                table.abort(rng.choice(list(sinks)))
            case 3 if instances and sinks:
                one = rng.choice(instances)
                if one.submitted():
                    table.lost(rng.choice(one.submitted()).id, one.name, "lost")
            case 4 if instances and sinks:
                one = rng.choice(instances)
                if one.submitted():
                    name = rng.choice(one.submitted()).id
                    at = len(sinks[name.partition("~")[0]].tokens)
                    one.say(name, at, rng.choice([None, "stop"]))
            case 5:
                clock.now += 0.5
                table.tick()
            case _:
                id = f"r{step}"
                try:
                    table.submit(request(id), sinks.setdefault(id, Sink()))
                except RequestError:
                    refused += 1
        assert all(one.target.running >= 0 for one in instances)
        there = sum(one.target.running for one in instances)
        assert there + table.stranded + table.waiting == table.in_flight
    table.fail_all("end")
    assert table.in_flight == 0
    assert all(count == 0 for count in router.open.values())
    assert all(one.target.running == one.target.held_tokens == 0 for one in instances)
    assert len(events.finished) == len(sinks) - refused
    assert len({id for id, _, _ in events.finished}) == len(events.finished), "finished twice"
