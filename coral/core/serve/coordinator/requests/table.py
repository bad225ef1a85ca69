"""All requests in flight: what instances say of them, what clients want, and that each ends once."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from coral.core.operate.shares import InflightShares
from coral.core.serve.coordinator.requests import refusals
from coral.core.serve.coordinator.requests.counters import Counters
from coral.core.serve.coordinator.requests.flight import ATTEMPT_MARK, Flight, LiveLeg
from coral.core.serve.coordinator.requests.handover import HandOvers
from coral.core.serve.coordinator.requests.options import RequestOptions
from coral.core.serve.coordinator.requests.placing import Placing
from coral.core.serve.coordinator.requests.routes import Routes
from coral.core.serve.coordinator.serving import TokenSink
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import InstanceStats, KvDestination, Tokens
from coral.errors import RequestError
from coral.hookspecs.router import Router
from coral.types.request import GenerateRequest, Leg, Token

log = logging.getLogger("coral.coordinator")


class FinishListener(Protocol):
    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None: ...


class RequestTable:
    """Called from the event loop only."""

    def __init__(
        self,
        routers: Mapping[str, Router],
        events: FinishListener,
        options: RequestOptions,
        *,
        decode_routers: Mapping[str, Router] | None = None,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Routers by model name, one for every model that is served: `routers` pick whole and prefill
        instances, `decode_routers` decode instances, where a model has them."""
        self._events = events
        self._now = now
        self._wall = wall
        self._flights: dict[str, Flight] = {}
        self._in_flight = dict.fromkeys(routers, 0)
        self.counters = Counters()
        priorities = {model: options.priorities.get(model, 1.0) for model in routers}
        self._shares = InflightShares(options.max_inflight, priorities)
        self._routes = Routes(routers, decode_routers or {}, now)
        self._placing = Placing(self._routes, list(routers), options, self.counters, self, now)
        self._handovers = HandOvers(self._routes, self._placing, self.counters)
        self.on_arrival: Callable[[str], None] = lambda model: None
        """Told the model of every request that comes, whether or not it is taken in."""

    def expect_instances(self, coming: Callable[[str], bool]) -> None:
        """`coming(model)`: whether a model that has none now has had one and gets one again. Requests for
        it then wait, instead of being refused."""
        self._placing.coming = coming

    # ------------------------------------------------------------ instances

    def admit(self, target: Target) -> None:
        """Route requests to it from now on, first those that wait for one like it."""
        self._routes.admit(target)
        self._placing.pump(target.model)

    def stop_admitting(self, instance: str) -> None:
        """No new requests; those on it go on."""
        self._routes.drop(instance)

    def stats(self, stats: InstanceStats) -> None:
        target = self._routes.target(stats.instance)
        if target is not None:
            target.heard(stats)
            self._placing.pump(target.model)

    def move_requests(self, instance: str, reason: str) -> None:
        """The instance has failed: its requests go on elsewhere from prompt + tokens so far.

        Those for which there is no other now wait for its successor, as long as their client does.
        """
        self._routes.forget(instance)
        for flight in list(self._flights.values()):
            leg = flight.leg_at(instance)
            if leg is not None:
                self._handovers.broken(flight, leg, reason, tell=False)

    def tick(self) -> None:
        """Called every second or so: for whom no room came in time is told, and others are tried again."""
        self._routes.say_again()
        self._placing.tick()

    # ------------------------------------------------------------ front door

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        """RequestError: 404 unknown model, 409 double, 429 too many in flight or waiting, 503 no instance."""
        model = request.model
        if model not in self._in_flight:
            raise refusals.unknown_model(model, self._in_flight)
        self.on_arrival(model)
        if request.id in self._flights:
            raise refusals.double(request.id)
        try:
            now = self._now()
            if self._in_flight[model] >= self._shares.most(model, self._in_flight):
                retry_s = self._placing.rates[model].retry_after_s(1, now, refusals.FAILED_S)
                raise refusals.too_many(self._in_flight[model], retry_s)
            flight = Flight(request, sink, now)
            self._placing.take_in(flight)
        except RequestError:
            self.counters.refused += 1
            raise
        self._flights[flight.id] = flight
        self._in_flight[model] += 1
        self.counters.submitted += 1

    def abort(self, request: str, *, stalled: bool = False) -> None:
        """Nobody wants it any more. `stalled`: since nothing came of it for too long, which counts as a
        failure of the instances that have it."""
        flight = self._flights.get(request)
        if flight is None:
            return
        if stalled:
            for leg in flight.legs:
                self._routes.failed_at(leg.target, self._now())
        self.counters.aborted += 1
        self._leave(flight, "abort")

    # ------------------------------------------------------------ schedulers and workers

    def tokens(self, message: Tokens) -> None:
        for token in message.tokens:
            found = self._find(token.request, message.instance)
            if found is None:
                continue  # left, or moved away from there
            flight, leg = found
            if token.position < len(flight.generated):
                self.counters.doubles += 1  # replayed after a preemption
            elif token.position > len(flight.generated):
                flight.early[token.position] = token  # from another node of the last stage
            else:
                try:
                    self._deliver(flight, leg, token)
                except Exception:  # one broken stream must not cost the others of this step their tokens
                    log.exception("request %s: its stream failed", flight.id)
                    self.abort(flight.id)

    def begun(self, request: str, instance: str) -> None:
        """Its prefill leg runs."""
        if (found := self._find(request, instance)) is not None:
            self._handovers.begun(*found)

    def kv_awaited(self, request: str, instance: str, to: KvDestination) -> None:
        """Its decode leg has room and expects the KV."""
        if (found := self._find(request, instance)) is not None:
            self._handovers.kv_awaited(*found, to)

    def handed_over(self, request: str, instance: str) -> None:
        """Its prefill leg is done."""
        if (found := self._find(request, instance)) is not None:
            self._handovers.handed_over(*found)

    def lost(self, request: str, instance: str, reason: str) -> None:
        """An instance can no longer serve what it had of it."""
        flight = self._named(request)
        if flight is None:
            return
        leg = flight.leg_at(instance)
        if leg is None:
            self._handovers.too_late(flight, instance, reason)
        else:
            self._routes.failed_at(leg.target, self._now())
            self._handovers.broken(flight, leg, reason, tell=False)

    def refused(self, request: str, instance: str, status: int, reason: str) -> None:
        """A scheduler did not take it: too long (400), or too many wait there (503)."""
        if (found := self._find(request, instance)) is None:
            return
        flight, leg = found
        if status == 400:
            self.fail(flight, refusals.too_long(reason), by=leg)
        elif 0 < flight.request.deadline_s <= self._wall():
            self.fail(flight, refusals.past_deadline(), by=leg)
        else:
            leg.target.refused(self._now())
            self._handovers.refused(flight, leg)

    # ------------------------------------------------------------ what is there

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def stranded(self) -> int:
        """Those that have been at an instance, and for which there is no other yet."""
        return sum(len(line.returned) for line in self._placing.lines.values())

    @property
    def waiting(self) -> int:
        """Those that have not been at any instance yet: all of them are full, or none is there."""
        return sum(len(line.new) for line in self._placing.lines.values())

    @property
    def handing(self) -> int:
        """Those whose prompt runs or has run, and for which no decode instance has room yet."""
        return sum(len(line.handing) for line in self._placing.lines.values())

    @property
    def promised(self) -> int:
        """Tokens of KV that decode legs to come are expected to take."""
        return self._routes.promised

    def loads(self) -> dict[str, int]:
        """Requests in flight by instance; those with none are left out."""
        return {instance: legs.total() for instance, legs in self.legs().items()}

    def legs(self) -> dict[str, Counter[Leg]]:
        """What is at each instance that has anything: legs of requests by kind."""
        found: dict[str, Counter[Leg]] = {}
        for flight in self._flights.values():
            for leg in flight.legs:
                found.setdefault(leg.target.instance, Counter())[leg.kind] += 1
        return found

    def circuits(self) -> dict[str, float]:
        """Instances that keep failing, and the seconds until they are tried again."""
        return self._routes.circuits(self._now())

    # ------------------------------------------------------------ ends

    def fail_all(self, reason: str) -> None:
        """End every request with an error: the system goes down."""
        self._placing.stop()
        for flight in list(self._flights.values()):
            self.fail(flight, RequestError(reason, status=503, code="service_unavailable"))

    def fail(self, flight: Flight, error: RequestError, *, by: LiveLeg | None = None) -> None:
        """End it with an error. `by`: the leg whose scheduler has let go of it already."""
        self.counters.failed += 1
        self._leave(flight, "error", by=by)
        try:
            flight.sink.on_error(error)
        except Exception:  # one broken stream must not keep the others from being told
            log.exception("request %s: its stream failed", flight.id)

    def _deliver(self, flight: Flight, leg: LiveLeg, token: Token) -> None:
        run = [flight.own(token, leg)]
        while run[-1].finish is None and (following := flight.early.pop(run[-1].position + 1, None)):
            run.append(following)
        flight.generated += [one.token for one in run]
        self.counters.tokens += len(run)
        if not leg.proved:
            leg.proved = True
            leg.target.breaker.succeeded(self._now())
        finish = run[-1].finish
        if finish is not None:
            self.counters.finished += 1
            self._leave(flight, finish, by=leg if leg.kind != "prefill" else None)
        flight.sink.on_tokens(run)
        if finish is None and leg.kind == "prefill":
            self._handovers.sampled(flight, leg)

    def _leave(self, flight: Flight, finish: str, *, by: LiveLeg | None = None) -> None:
        self._placing.leave(flight)
        for leg in flight.legs:
            self._routes.end_leg(flight, leg, tell=leg is not by)
        del self._flights[flight.id]
        self._in_flight[flight.model] -= 1
        now = self._now()
        self._placing.rates[flight.model].left(now)
        self._events.request_finished(
            request=flight.id,
            model=flight.model,
            finish=finish,
            prompt_tokens=len(flight.request.prompt_ids),
            output_tokens=len(flight.generated),
            seconds=now - flight.started,
        )
        self._placing.pump(flight.model)

    def _named(self, name: str) -> Flight | None:
        """The flight that is called so on the wire; None where it has left, or is on another attempt."""
        flight = self._flights.get(name) or self._flights.get(name.rpartition(ATTEMPT_MARK)[0])
        return flight if flight is not None and flight.name == name else None

    def _find(self, name: str, instance: str) -> tuple[Flight, LiveLeg] | None:
        """The flight and its leg there; None where it is not, or no longer, there."""
        flight = self._named(name)
        leg = flight.leg_at(instance) if flight is not None else None
        return (flight, leg) if flight is not None and leg is not None else None
