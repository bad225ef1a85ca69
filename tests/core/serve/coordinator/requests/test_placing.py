"""Who waits, for how long, and who is refused: room, retries, instances that keep failing, and fairness."""

from __future__ import annotations

import pytest

from coral.core.operate.breaker import LEAST_FAILURES
from coral.core.serve.coordinator.requests import RequestOptions, RequestTable
from coral.core.serve.coordinator.target import WAITING
from coral.core.serve.net.wire import Abort, InstanceStats, Submit
from coral.errors import RequestError
from coral.testing.played import MODEL, Client, World, ask

NEED = 3 + 4
"""Tokens of KV that `ask` is expected to take: its prompt, and the output of a usual request."""


def stats(instance: str, waiting: int) -> InstanceStats:
    return InstanceStats(instance=instance, running=0, waiting=waiting, preemptions=0)


def tick(world: World, seconds: float) -> None:
    world.clock.now += seconds
    world.table.tick()


# ------------------------------------------------------------ room


def test_an_instance_without_room_is_not_picked_while_another_has_some() -> None:
    world = World()
    small, large = world.instance("small", room=11), world.instance("large", room=NEED * 20)
    for i in range(20):
        world.submit(ask(f"r{i}"))
    assert len(small.submitted()) <= 2, "one that runs and one that is next"
    assert len(small.submitted()) + len(large.submitted()) == 20


def test_what_schedulers_say_of_those_that_wait_there_counts() -> None:
    world = World()
    crowded, other = world.instance("crowded"), world.instance("other")
    world.table.stats(stats("crowded", WAITING))
    for i in range(10):
        world.submit(ask(f"r{i}"))
    assert (crowded.submitted(), len(other.submitted())) == ([], 10)
    world.table.stats(stats("crowded", 0))
    for i in range(10, 30):
        world.submit(ask(f"r{i}"))
    assert crowded.submitted()


def test_who_finds_all_full_waits_in_order_and_goes_when_there_is_room() -> None:
    world = World()
    one = world.instance("one", room=11)
    clients = [world.submit(ask(f"r{i}")) for i in range(6)]
    assert (len(one.submitted()), world.table.waiting) == (2, 4)
    world.settle()
    assert [request.id for request in one.submitted()] == [f"r{i}" for i in range(6)]
    assert all(client.finish == "length" for client in clients)
    assert world.table.counters.queued == 4
    world.check_idle()


def test_nobody_overtakes_those_that_wait_for_room_but_those_that_fit_nowhere_hold_up_nobody() -> None:
    world = World()
    one = world.instance("one", room=40)
    large = world.instance("large", room=100)
    giant = world.submit(ask("giant", prompt=60))
    assert large.submitted()
    large.die()
    assert (world.table.stranded, giant.error) == (1, None)
    small = world.submit(ask("small"))
    assert one.submitted(), "the giant that fits in no other instance is passed by"
    world.instance("large again", room=100)
    world.settle()
    assert (giant.finish, small.finish) == ("length", "length")


def test_the_line_is_bounded_and_whoever_is_refused_is_told_when_to_come_again() -> None:
    world = World(options=RequestOptions(queue_requests=3))
    world.instance("one", room=11)
    for i in range(5):
        world.submit(ask(f"r{i}"))
    with pytest.raises(RequestError) as full:
        world.submit(ask("r5"))
    assert (full.value.status, full.value.retry_after_s) == (429, 1.0)
    assert world.table.counters.refused == 1


def test_when_to_come_again_is_computed_from_how_fast_requests_leave() -> None:
    world = World(options=RequestOptions(queue_requests=8))
    one = world.instance("one", room=11)
    for i in range(10):  # one leaves every second
        world.submit(ask(f"r{i}", max_tokens=1))
        while one.sequences:
            world.step()
        while world.step():
            pass
        world.clock.now += 1.0
    for i in range(10):
        world.submit(ask(f"q{i}"))
    with pytest.raises(RequestError) as full:
        world.submit(ask("q10"))
    assert full.value.retry_after_s == pytest.approx(9.0, rel=0.05)


def test_who_could_not_be_served_in_time_is_refused_at_once() -> None:
    world = World(options=RequestOptions(queue_requests=1000, queue_timeout_s=5.0))
    one = world.instance("one", room=11)
    for i in range(10):
        world.submit(ask(f"r{i}", max_tokens=1))
        while one.sequences:
            world.step()
        while world.step():
            pass
        world.clock.now += 1.0
    for i in range(2 + 5):  # two are sent, and five can leave within the time that one may wait
        world.submit(ask(f"q{i}"))
    with pytest.raises(RequestError) as late:
        world.submit(ask("one more"))
    assert late.value.status == 429


def test_for_whom_no_room_comes_in_time_is_answered() -> None:
    world = World(options=RequestOptions(queue_timeout_s=5.0))
    world.instance("one", room=11)
    clients = [world.submit(ask(f"r{i}")) for i in range(4)]
    tick(world, 4.9)
    assert all(client.error is None for client in clients)
    tick(world, 0.2)
    told = [client for client in clients if client.error is not None]
    assert told == clients[2:]
    assert all(c.error is not None and c.error.status == 503 and c.error.retry_after_s for c in told)
    assert (world.table.waiting, world.table.in_flight) == (0, 2)


def test_after_idling_a_burst_is_served() -> None:
    world = World()
    world.instance("p", "prefill", room=60)
    world.instance("d", "decode", room=60)
    for burst in range(3):
        for i in range(40):
            world.submit(ask(f"b{burst}-{i}"))
        world.settle()
        tick(world, 3600.0)
    assert all(client.finish == "length" for client in world.clients.values())
    world.check_idle()


# ------------------------------------------------------------ instances that are not there yet


def test_for_a_model_that_gets_an_instance_again_new_requests_wait() -> None:
    world = World()
    world.instance("a").die()
    with pytest.raises(RequestError) as none:
        world.submit(ask("r"))
    assert none.value.status == 503
    world.table.expect_instances(lambda model: model == MODEL)
    client = world.submit(ask("r"))
    assert world.table.waiting == 1
    world.instance("b")
    world.settle()
    assert client.finish == "length"


def test_they_wait_no_longer_than_they_may() -> None:
    world = World(options=RequestOptions(queue_timeout_s=5.0))
    world.table.expect_instances(lambda model: True)
    client = world.submit(ask("r"))
    tick(world, 6.0)
    assert client.error is not None
    assert client.error.status == 503
    world.check_idle()


# ------------------------------------------------------------ retries


def test_a_request_is_not_sent_back_at_once_to_where_it_has_failed() -> None:
    world = World()
    one = world.instance("one")
    client = world.submit(ask("r"))
    one.lose("r")
    while world.step():
        pass
    assert len(one.submitted()) == 1
    tick(world, 1.0)
    assert len(one.submitted()) == 2, "but there is no other"
    world.settle()
    assert client.finish == "length"


def test_retries_beyond_the_budget_are_made_later_and_not_given_up() -> None:
    world = World(options=RequestOptions(retry_share=0.0, retry_per_s=1.0, retry_burst=2.0))
    a = world.instance("a")
    clients = [world.submit(ask(f"r{i}")) for i in range(5)]
    b = world.instance("b")
    a.die()
    assert (len(b.submitted()), world.table.stranded) == (2, 3)
    tick(world, 1.0)
    assert (len(b.submitted()), world.table.stranded) == (3, 2)
    world.settle()
    assert all(client.finish == "length" for client in clients)
    world.check_idle()


def test_a_request_that_fails_everywhere_ends() -> None:
    world = World(options=RequestOptions(retries_per_request=3, queue_timeout_s=1e9))
    one = world.instance("one")
    client = world.submit(ask("r"))
    for _ in range(20):
        for name in list(one.sequences):
            one.lose(name, "cannot open it")
        world.step()
        tick(world, 10.0)
    assert len(one.submitted()) == 4
    assert client.error is not None
    assert (client.error.status, "cannot open it" in str(client.error)) == (503, True)
    world.check_idle()


# ------------------------------------------------------------ circuits


def failing(world: World) -> None:
    """All that goes to `bad` is lost there, until its breaker opens."""
    bad = world.instances["bad"]
    for i in range(200):
        world.submit(ask(f"f{i}"))
        for name in list(bad.sequences):
            bad.lose(name)
        while world.step():
            pass
        if "bad" in world.table.circuits():
            return
    raise AssertionError("it never opened")


def test_an_instance_that_keeps_failing_gets_no_requests_for_a_while_then_one() -> None:
    world = World()
    bad = world.instance("bad")
    world.instance("good")
    failing(world)
    assert len(bad.submitted()) >= LEAST_FAILURES
    before = len(bad.submitted())
    for i in range(50):
        world.submit(ask(f"r{i}"))
    assert len(bad.submitted()) == before
    assert 0 < world.table.circuits()["bad"] <= 1.0
    tick(world, 1.0)
    for i in range(50):
        world.submit(ask(f"s{i}"))
    assert len(bad.submitted()) == before + 1, "one is tried"
    world.settle()
    assert world.table.circuits() == {}, "it has served"
    assert all(client.finish == "length" for client in world.clients.values())
    world.check_idle()


def test_where_the_only_instance_keeps_failing_requests_wait() -> None:
    world = World()
    bad = world.instance("bad")
    failing(world)
    before = len(bad.submitted())
    client = world.submit(ask("r"))
    assert (len(bad.submitted()), client.error) == (before, None)
    world.settle()
    assert client.finish == "length"


def test_requests_given_up_since_nothing_came_count_against_their_instance() -> None:
    world = World()
    world.instance("hung")
    for i in range(LEAST_FAILURES):
        world.submit(ask(f"r{i}"))
    for i in range(LEAST_FAILURES):
        world.clients[f"r{i}"].left = True
        world.table.abort(f"r{i}", stalled=True)
    assert "hung" in world.table.circuits()


def test_an_instance_that_cannot_be_told_of_an_abort_is_told_later() -> None:
    world = World()
    one = world.instance("one")
    world.submit(ask("r"))
    one.reachable = False
    world.leave("r")
    assert one.sequences
    one.reachable = True
    world.table.tick()
    assert one.received[-1] == Abort(requests=("r",))
    world.check_idle()


# ------------------------------------------------------------ models among each other


def test_a_flood_for_one_model_leaves_room_for_another() -> None:
    world = World()
    table = RequestTable(
        {"a": world.first_router, "b": world.first_router},
        world.ended,
        RequestOptions(max_inflight=100, queue_requests=1000, priorities={"a": 1.0, "b": 3.0}),
        now=world.clock,
    )
    table.expect_instances(lambda model: True)
    taken = {"a": 0, "b": 0}
    for i in range(200):
        for model, most in (("a", 200), ("b", 20)):
            if i < most:
                request = ask(f"{model}{i}")
                named = type(request)(
                    id=request.id, model=model, prompt_ids=request.prompt_ids, sampling=request.sampling
                )
                try:
                    table.submit(named, Client(named))
                except RequestError as error:
                    assert error.retry_after_s is not None  # noqa: PT017
                else:
                    taken[model] += 1
    assert taken == {"a": 63, "b": 20}, "all but half of b's share of 75"


def test_a_deadline_that_has_passed_is_no_reason_to_go_elsewhere() -> None:
    world = World()
    one, other = world.instance("one"), world.instance("other")
    request = ask("r")
    late = type(request)(
        id="r",
        model=MODEL,
        prompt_ids=request.prompt_ids,
        sampling=request.sampling,
        deadline_s=world.clock.now + 1.0,
    )
    client = world.submit(late)
    at = one if one.sequences else other
    world.clock.now += 2.0
    at.refuse("r")
    world.settle()
    assert client.error is not None
    assert client.error.status == 504
    assert sum(isinstance(m, Submit) for m in [*one.received, *other.received]) == 1
    world.check_idle()
