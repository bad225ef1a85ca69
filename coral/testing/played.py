"""Instances that a test plays for a `RequestTable`: they keep to the protocol of the hand-over, and take one
step at a time, in whatever order the test picks; any step may be a failure instead.

What a scheduler says arrives in order, and so do the tokens of an instance, but the two come by different
sockets: either may overtake the other.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence

from coral.core.serve.coordinator.requests import RequestOptions, RequestTable
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net import wire
from coral.errors import RequestError
from coral.hookspecs.router import Candidate, RouteRequest
from coral.types.handover import KvDestination
from coral.types.hardware import Domain
from coral.types.model import Phase
from coral.types.request import FinishReason, GenerateRequest, Leg, Sampling, Token

HERE = Domain("local", "here")
MODEL = "m"
LEASE_S = 60.0


def token_at(position: int) -> int:
    """What every engine samples there."""
    return 100 + position


def ask(id: str, *, max_tokens: int = 8, prompt: int = 3, stop_at: int | None = None) -> GenerateRequest:
    """A request that ends by "stop" with the token at `stop_at`, else by its limit."""
    stops = () if stop_at is None else (token_at(stop_at),)
    return GenerateRequest(
        id=id,
        model=MODEL,
        prompt_ids=tuple(range(prompt)),
        sampling=Sampling(max_tokens=max_tokens, stop_ids=stops),
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingRouter:
    """Picks at random; holds that every pick is done once."""

    def __init__(self, rng: random.Random) -> None:
        self.open: Counter[tuple[str, str]] = Counter()
        self._rng = rng

    def pick(self, request: RouteRequest, among: Sequence[Candidate], now: float) -> Candidate:
        picked = self._rng.choice(among)
        self.open[request.id, picked.id] += 1
        return picked

    def done(self, request: RouteRequest, candidate: Candidate, now: float) -> None:
        self.open[request.id, candidate.id] -= 1
        assert self.open[request.id, candidate.id] >= 0, "done without a pick"


class Ended:
    """Listens to what requests end by."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str, int]] = []

    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None:
        self.finished.append((request, finish, output_tokens))


class Client:
    """A sink that takes tokens only in order, and nothing after the end."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.error: RequestError | None = None
        self.left = False

    @property
    def ended(self) -> bool:
        return self.left or self.finish is not None or self.error is not None

    def on_tokens(self, tokens: Sequence[Token]) -> None:
        assert not self.ended
        for token in tokens:
            assert token.position == len(self.tokens)
            assert token.token == token_at(token.position)
            self.tokens.append(token.token)
        assert all(token.finish is None for token in tokens[:-1])
        self.finish = tokens[-1].finish

    def on_error(self, error: RequestError) -> None:
        assert not self.ended
        self.error = error


class Played:
    """A sequence at an instance. `kv`: all KV has come; `went_on`: what the prefill leg sampled has. It
    waits for its other leg from `since_s` on."""

    def __init__(self, request: GenerateRequest, leg: Leg, since_s: float) -> None:
        self.request = request
        self.leg = leg
        self.since_s = since_s
        self.generated = len(request.generated)
        self.begun = False
        self.sampled = False
        self.to: KvDestination | None = None
        self.kv = False
        self.went_on = False


class PlayedInstance:
    """`says` and `samples` are messages on their way to the coordinator, by its two sockets."""

    def __init__(self, world: World, name: str, phase: Phase, domain: Domain, room: int) -> None:
        self.name = name
        self.phase = phase
        self.reachable = True
        self.alive = True
        self.sequences: dict[str, Played] = {}
        self.received: list[wire.Message] = []
        self.says: deque[Callable[[], None]] = deque()
        self.samples: deque[wire.Tokens] = deque()
        self._world = world
        self._attempts = 0
        self.target = Target(
            name,
            MODEL,
            1.0,
            self.send,
            max_request_tokens=room,
            expected_output_tokens=4,
            kv_tokens=room,
            domain=domain,
            phase=phase,
        )

    # ------------------------------------------------------------ from the coordinator

    def send(self, message: wire.Message) -> bool:
        if not self.alive or not self.reachable:
            return False
        self.received.append(message)
        match message:
            case wire.Submit(request=request, leg=leg):
                assert request.id not in self.sequences, "a request is sent twice by one name"
                self.sequences[request.id] = Played(request, leg, self._world.clock.now)
            case wire.Abort(requests=requests):
                for request_id in requests:
                    self.sequences.pop(request_id, None)
            case wire.HandOver(request=name, to=to):
                if name in self.sequences:
                    self.sequences[name].to = to
                else:
                    self.say(self._world.table.lost, name, self.name, "its KV is no longer here")
            case wire.GoOn(request=name, tokens=tokens):
                if (sequence := self.sequences.get(name)) is not None:
                    assert sequence.leg == "decode"
                    assert tokens == (token_at(sequence.generated),)
                    sequence.went_on = True
                    sequence.generated += 1
            case _:
                raise AssertionError(f"{self.name} was sent {message}")
        return True

    def submitted(self, leg: Leg | None = None) -> list[GenerateRequest]:
        """Requests that were sent here, by leg."""
        return [
            message.request
            for message in self.received
            if isinstance(message, wire.Submit) and leg in (None, message.leg)
        ]

    # ------------------------------------------------------------ what it may do next

    def steps(self) -> list[Callable[[], None]]:
        """What may happen next here, messages that arrive among it."""
        if not self.alive:
            return []
        found: list[Callable[[], None]] = []
        if self.says:
            found.append(lambda: self.says.popleft()())
        if self.samples:
            found.append(lambda: self._world.table.tokens(self.samples.popleft()))
        for name, sequence in self.sequences.items():
            step = self._step(name, sequence)
            if step is not None:
                found.append(step)
        return found

    def _step(self, name: str, sequence: Played) -> Callable[[], None] | None:
        table = self._world.table
        if sequence.leg == "whole" or (sequence.leg == "decode" and sequence.kv and sequence.went_on):
            return lambda: self.sample(name)
        if not sequence.begun:
            return lambda: self._begin(name, sequence)
        if sequence.leg == "prefill" and not sequence.sampled:
            return lambda: self.sample(name)
        if self._world.clock.now - sequence.since_s > LEASE_S:
            return lambda: self.lose(name, "its other leg does not come")
        if sequence.leg == "prefill" and sequence.to is not None:
            to = self._world.instances.get(sequence.to.instance)
            other = to.sequences.get(name) if to is not None and to.alive else None
            if other is None:
                return lambda: self.lose(name, "nobody takes its KV")

            def hand_over() -> None:
                other.kv = True
                self.sequences.pop(name, None)
                self.say(table.handed_over, name, self.name)

            return hand_over
        return None

    def _begin(self, name: str, sequence: Played) -> None:
        sequence.begun = True
        if sequence.leg == "prefill":
            self.say(self._world.table.begun, name, self.name)
        else:
            self._attempts += 1
            to = KvDestination(instance=self.name, generation=1, attempt=self._attempts, nodes=())
            self.say(self._world.table.kv_awaited, name, self.name, to)

    def sample(self, name: str) -> None:
        """The next token of a sequence, which leaves with its last; a prefill leg stays."""
        sequence = self.sequences[name]
        sampling, position = sequence.request.sampling, sequence.generated
        sequence.generated += 1
        finish: FinishReason | None = None
        if token_at(position) in sampling.stop_ids:
            finish = "stop"
        elif sequence.generated >= sampling.max_tokens:
            finish = "length"
        token = Token(request=name, attempt=0, position=position, token=token_at(position), finish=finish)
        self.samples.append(wire.Tokens(instance=self.name, node="n", tokens=(token,)))
        if sequence.leg == "prefill":
            sequence.sampled = True
        if finish is not None and (sequence.leg != "prefill" or finish == "stop"):
            del self.sequences[name]

    def say(self, tell: Callable[..., None], *what: object) -> None:
        """A message of its scheduler."""
        self.says.append(lambda: tell(*what))

    # ------------------------------------------------------------ failures

    def lose(self, name: str, reason: str = "lost") -> None:
        self.sequences.pop(name, None)
        self.say(self._world.table.lost, name, self.name, reason)

    def refuse(self, name: str, status: int = 503) -> None:
        """Its scheduler finds that it has no room, before it has begun."""
        self.sequences.pop(name, None)
        self.say(self._world.table.refused, name, self.name, status, "no room")

    def die(self) -> None:
        """Nothing more is heard of it, nor what was under way; the coordinator notices."""
        self.alive = False
        self.sequences.clear()
        self.says.clear()
        self.samples.clear()
        self._world.table.move_requests(self.name, "killed")


class World:
    """A table, its instances and its clients."""

    def __init__(self, seed: int = 0, options: RequestOptions | None = None) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.ended = Ended()
        self.first_router = CountingRouter(self.rng)
        self.decode_router = CountingRouter(self.rng)
        self.table = RequestTable(
            {MODEL: self.first_router},
            self.ended,
            options or RequestOptions(),
            decode_routers={MODEL: self.decode_router},
            now=self.clock,
            wall=self.clock,
        )
        self.instances: dict[str, PlayedInstance] = {}
        self.clients: dict[str, Client] = {}

    def instance(
        self, name: str, phase: Phase = "mixed", *, domain: Domain = HERE, room: int = 1000
    ) -> PlayedInstance:
        """One more, which is ready."""
        one = self.instances[name] = PlayedInstance(self, name, phase, domain, room)
        self.table.admit(one.target)
        return one

    def submit(self, request: GenerateRequest) -> Client:
        """RequestError where it is refused."""
        client = Client(request)
        self.table.submit(request, client)
        self.clients[request.id] = client
        return client

    def leave(self, id: str) -> None:
        """The client goes."""
        self.clients[id].left = True
        self.table.abort(id)

    # ------------------------------------------------------------ time

    def step(self) -> bool:
        """Something that may happen does, picked at random; False where nothing can."""
        steps = [step for one in self.instances.values() for step in one.steps()]
        if not steps:
            return False
        self.rng.choice(steps)()
        return True

    def settle(self, within_s: float = 300.0) -> None:
        """Until all clients have their end; the clock runs only where nothing else happens.

        AssertionError where one has none after `within_s` seconds.
        """
        until = self.clock.now + within_s
        while not all(client.ended for client in self.clients.values()):
            if not self.step():
                assert self.clock.now < until, f"no end: {self.unended()}"
                self.clock.now += 1.0
                self.table.tick()
            self.check()
        self.table.tick()
        while self.step():
            self.check()

    def unended(self) -> list[str]:
        return [id for id, client in self.clients.items() if not client.ended]

    # ------------------------------------------------------------ what must hold

    def check(self) -> None:
        """At any time: what is counted of an instance is what is there."""
        loads = self.table.loads()
        for one in self.instances.values():
            assert one.target.running == loads.get(one.name, 0), one.name
            assert one.target.held_tokens >= 0
        open_picks = sum(self.first_router.open.values()) + sum(self.decode_router.open.values())
        assert open_picks == sum(loads.values())

    def check_idle(self) -> None:
        """When nobody is in flight: all counters are back at zero, and no instance has anything left."""
        assert self.table.in_flight == 0
        assert (self.table.stranded, self.table.waiting, self.table.handing) == (0, 0, 0)
        assert self.table.loads() == {}
        assert self.table.promised == 0
        self.check()
        for one in self.instances.values():
            assert one.target.running == one.target.held_tokens == 0, one.name
            assert not one.sequences, f"{one.name} still has {list(one.sequences)}"
        ended = [id for id, _, _ in self.ended.finished]
        assert sorted(ended) == sorted(self.clients), "every request ends exactly once"
