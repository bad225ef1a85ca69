"""A request that goes from a prefill to a decode instance, and every way in which that can break off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from coral.core.serve.coordinator.requests import RequestOptions
from coral.core.serve.net.wire import Abort, GoOn, HandOver
from coral.errors import RequestError
from coral.testing.played import HERE, Client, PlayedInstance, World, ask, token_at
from coral.types.hardware import Domain
from coral.types.model import Phase

THERE = Domain("local", "there")


@pytest.fixture
def world() -> World:
    return World()


def expected(n: int) -> list[int]:
    return [token_at(i) for i in range(n)]


def served(client: Client, n: int = 8, finish: str = "length") -> None:
    assert (client.tokens, client.finish, client.error) == (expected(n), finish, None)


def test_prefill_here_decode_there(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    world.settle()
    served(client)
    [prefill], [decode] = p.submitted("prefill"), d.submitted("decode")
    assert prefill.sampling.max_tokens == 1
    assert (decode.sampling.max_tokens, decode.generated) == (8, ())
    assert [m for m in p.received if isinstance(m, HandOver)] != []
    assert [m for m in d.received if isinstance(m, GoOn)] == [GoOn(request="r", tokens=(100,))]
    assert not any(isinstance(m, Abort) for m in [*p.received, *d.received])
    assert world.table.counters.handed_over == 1
    world.check_idle()


def test_the_decode_instance_is_asked_for_while_the_prompt_runs(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    world.submit(ask("r"))
    assert d.submitted() == [], "not before it runs"
    p.steps()[0]()
    p.says.popleft()()
    assert len(d.submitted("decode")) == 1
    assert world.clients["r"].tokens == []


def test_a_single_token_needs_no_decode_instance(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r", max_tokens=1))
    world.settle()
    served(client, 1)
    assert (len(p.submitted("whole")), d.received) == (1, [])
    world.check_idle()


def test_a_first_token_that_ends_the_request_ends_both_legs(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r", stop_at=0))
    world.settle()
    served(client, 1, "stop")
    assert Abort(requests=("r",)) in p.received
    if d.received:
        assert Abort(requests=("r",)) in d.received
    world.check_idle()


def test_decode_is_in_the_domain_of_prefill(world: World) -> None:
    world.instance("p", "prefill", domain=HERE)
    other = world.instance("far", "decode", domain=THERE)
    near = world.instance("near", "decode", domain=HERE)
    for i in range(10):
        world.submit(ask(f"r{i}"))
    world.settle()
    assert (len(near.submitted("decode")), other.received) == (10, [])


def test_a_prefill_instance_without_a_decode_instance_in_its_domain_is_not_asked_to_hand_over(
    world: World,
) -> None:
    lonely = world.instance("lonely", "prefill", domain=THERE)
    world.instance("p", "prefill")
    world.instance("d", "decode")
    for i in range(10):
        world.submit(ask(f"r{i}"))
    world.settle()
    assert lonely.received == []


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_where_only_one_phase_is_there_it_serves_whole_requests(world: World, phase: str) -> None:
    one = world.instance("one", "prefill" if phase == "prefill" else "decode")
    client = world.submit(ask("r"))
    world.settle()
    served(client)
    assert len(one.submitted("whole")) == 1
    world.check_idle()


def test_mixed_instances_and_pairs_share_the_requests(world: World) -> None:
    mixed = world.instance("mixed")
    p = world.instance("p", "prefill")
    world.instance("d", "decode")
    for i in range(40):
        world.submit(ask(f"r{i}"))
    world.settle()
    assert len(mixed.submitted("whole")) + len(p.submitted("prefill")) == 40
    assert mixed.submitted()
    assert p.submitted()


# ------------------------------------------------------------ what breaks off


def deliver(one: PlayedInstance) -> None:
    """All that its scheduler has said."""
    while one.says:
        one.says.popleft()()


Moment = Callable[[World, PlayedInstance, PlayedInstance], None]


def not_begun(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    return


def begun(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    p.steps()[0]()
    deliver(p)


def awaited(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    begun(world, p, d)
    d.steps()[0]()
    deliver(d)


def token_first(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    """The token is there before the decode leg has a route."""
    begun(world, p, d)
    p.sample("r")
    world.table.tokens(p.samples.popleft())


def both(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    awaited(world, p, d)
    p.sample("r")
    world.table.tokens(p.samples.popleft())


def handed_over_before_its_token(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    """What the scheduler says overtakes the token."""
    awaited(world, p, d)
    p.sample("r")
    token = p.samples.popleft()
    p.steps()[0]()
    deliver(p)
    p.samples.append(token)


def handed_over(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    both(world, p, d)
    p.steps()[0]()
    deliver(p)


def decoding(world: World, p: PlayedInstance, d: PlayedInstance) -> None:
    handed_over(world, p, d)
    for _ in range(3):
        d.sample("r")
        world.table.tokens(d.samples.popleft())


MOMENTS: list[Moment] = [
    not_begun,
    begun,
    awaited,
    token_first,
    both,
    handed_over_before_its_token,
    handed_over,
    decoding,
]


def at(moment: Moment, *, spare: bool) -> tuple[World, PlayedInstance, PlayedInstance, Client]:
    world = World()
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    moment(world, p, d)
    if spare:
        world.instance("p2", "prefill")
        world.instance("d2", "decode")
    return world, p, d, client


@pytest.mark.parametrize("spare", [True, False], ids=["others there", "others come later"])
@pytest.mark.parametrize("who", ["p", "d", "both"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_instances_that_die_cost_no_request(moment: Moment, who: str, spare: bool) -> None:
    world, p, d, client = at(moment, spare=spare)
    for one in (p, d) if who == "both" else (world.instances[who],):
        one.die()
        world.check()
    if not spare:
        assert client.error is None
        world.instance("p2", "prefill")
        world.instance("d2", "decode")
    world.settle()
    served(client)
    world.check_idle()


@pytest.mark.parametrize("how", ["lost", "refused"])
@pytest.mark.parametrize("who", ["p", "d"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_one_instance_loses_or_refuses_goes_on(moment: Moment, who: str, how: str) -> None:
    world, _, _, client = at(moment, spare=False)
    one = world.instances[who]
    for name in list(one.sequences):
        one.lose(name) if how == "lost" else one.refuse(name)
    world.settle()
    served(client)
    world.check_idle()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_client_that_leaves_ends_both_legs_at_once(moment: Moment) -> None:
    world, p, d, _ = at(moment, spare=False)
    there = [one for one in (p, d) if one.sequences]
    world.leave("r")
    for one in there:
        assert one.received[-1] == Abort(requests=("r",))
    world.settle()
    world.check_idle()


def test_only_the_decode_leg_is_repeated_while_the_kv_is_still_there(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    both(world, p, d)
    d2 = world.instance("d2", "decode")
    d.die()
    world.settle()
    served(client)
    assert (len(p.submitted()), len(d2.submitted("decode"))) == (1, 1)
    assert world.table.counters.moved == 1
    world.check_idle()


def test_a_prefill_instance_that_dies_after_the_first_tokens_of_decode_costs_nothing(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    both(world, p, d)
    hand_over = p.steps()[0]
    hand_over()  # what it says of it is not heard yet
    d.sample("r")
    world.table.tokens(d.samples.popleft())
    p.die()
    world.settle()
    served(client)
    assert (world.table.counters.moved, len(d.submitted())) == (0, 1)
    world.check_idle()


def test_too_long_for_prefill_never_reaches_decode(world: World) -> None:
    """What no instance could hold is answered with the limit, and the decode instance never hears of it."""
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    p.refuse("r", 400)
    world.settle()
    assert client.error is not None
    assert (client.error.status, client.error.code) == (400, "context_length_exceeded")
    assert d.received == []
    world.check_idle()


def test_decode_that_is_full_keeps_new_prompts_from_starting(world: World) -> None:
    """A prompt whose KV would find no place is not computed: it would hold its blocks for nothing."""
    p = world.instance("p", "prefill")
    world.instance("d", "decode", room=14)  # one of 3 + 8 tokens, of which it reserves 3 + 4
    for i in range(5):
        world.submit(ask(f"r{i}"))
    assert len(p.submitted()) == 2, "one that decodes, and one that is ready when that has left"
    assert world.table.waiting == 3
    world.settle()
    for client in world.clients.values():
        served(client)
    world.check_idle()


def test_a_lease_that_runs_out_starts_the_request_anew(world: World) -> None:
    """No decode instance has had room in all that time; then there is one."""
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    token_first(world, p, d)
    d.refuse("r")
    deliver(d)
    p.lose("r", "no instance has taken its KV over within 60 s")
    deliver(p)
    world.settle()
    served(client)
    world.check_idle()


def test_where_hand_overs_keep_failing_one_instance_serves_the_whole_request(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    client = world.submit(ask("r"))
    while not client.ended:
        for name, sequence in list(d.sequences.items()):
            if sequence.leg == "decode":
                d.lose(name, "a KV transfer failed")
        if not world.step():
            world.clock.now += 1.0
            world.table.tick()
    served(client)
    assert len(d.submitted("decode")) == 3
    assert len([*p.submitted("whole"), *d.submitted("whole")]) == 1
    world.settle()
    world.check_idle()


def test_while_all_decode_instances_keep_failing_new_requests_are_served_whole(world: World) -> None:
    p, d = world.instance("p", "prefill"), world.instance("d", "decode")
    for _ in range(20):
        d.target.breaker.failed(world.clock.now)
    assert "d" in world.table.circuits()
    client = world.submit(ask("r"))
    world.settle()
    served(client)
    assert (len(p.submitted("whole")), d.received) == (1, [])


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_every_request_ends_once_and_nothing_is_left(seed: int) -> None:
    """Random order of everything, with instances that die and come, refuse and lose, cannot be reached, and
    clients that leave: no counter is ever wrong, every client gets all its tokens, and at the end
    all counters are zero and no instance holds anything."""
    world = World(seed, RequestOptions(retries_per_request=10_000, retry_burst=1e9, queue_timeout_s=1e9))
    rng, made = world.rng, 0
    kinds: list[list[Phase]] = [["prefill", "decode"], ["prefill", "decode", "mixed"], ["mixed"]]
    phases = rng.choice(kinds)
    domains = [HERE] if rng.random() < 0.5 else [HERE, THERE]

    def add() -> None:
        nonlocal made
        made += 1
        world.instance(
            f"i{made}", rng.choice(phases), domain=rng.choice(domains), room=rng.choice([12, 30, 1000])
        )

    for _ in range(4):
        add()
    for i in range(400):
        alive = [one for one in world.instances.values() if one.alive]
        match rng.randrange(40):
            case 0 if len(alive) < 8:
                add()
            case 1 if alive:
                rng.choice(alive).die()
            case 2 | 3 if any(one.sequences for one in alive):
                one = rng.choice([one for one in alive if one.sequences])
                name = rng.choice(list(one.sequences))
                one.lose(name) if one.sequences[name].begun or rng.random() < 0.5 else one.refuse(name)
            case 4 if alive:
                one = rng.choice(alive)
                one.reachable = not one.reachable
            case 5 if world.unended():
                world.leave(rng.choice(world.unended()))
            case 6:
                world.clock.now += rng.random() * 3
                world.table.tick()
            case n if n < 16:
                stop = rng.choice([None, 0, 1, 5])
                with contextlib.suppress(RequestError):
                    world.submit(ask(f"r{i}", max_tokens=rng.choice([1, 2, 8]), stop_at=stop))
            case _:
                world.step()
        world.check()
    for one in world.instances.values():
        one.reachable = True
    world.instance("last p", "prefill")
    world.instance("last d", "decode")
    world.settle()
    for client in world.clients.values():
        if not client.left:
            sampling = client.request.sampling
            stop = sampling.stop_ids[0] - token_at(0) + 1 if sampling.stop_ids else 10**9
            n = min(sampling.max_tokens, stop)
            served(client, n, "stop" if n == stop else "length")
    world.check_idle()
