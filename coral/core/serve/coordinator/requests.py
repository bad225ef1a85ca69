"""Requests in flight: routed, followed token by token, moved when their instance fails, ended once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from coral.core.serve.coordinator.serving import TokenSink
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import Abort, InstanceStats, Submit, Tokens
from coral.errors import RequestError
from coral.hookspecs.router import Candidate, Router, RouteRequest
from coral.types.request import GenerateRequest, Token

log = logging.getLogger("coral.coordinator")

MOVES = 2
"""How often a request may go on at another instance."""
RETRY_AFTER_S = 1.0


class FinishListener(Protocol):
    def request_finished(
        self, request: str, model: str, finish: str, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> None: ...


class Flight:
    """One request in the system."""

    __slots__ = (
        "candidate",
        "early",
        "generated",
        "moves",
        "reason",
        "request",
        "route",
        "sink",
        "started",
        "target",
    )

    def __init__(self, request: GenerateRequest, sink: TokenSink, started: float) -> None:
        self.request = request
        self.sink = sink
        self.started = started
        self.route = RouteRequest(
            id=request.id,
            model=request.model,
            prompt_ids=request.prompt_ids,
            max_tokens=request.sampling.max_tokens,
        )
        self.generated = list(request.generated)
        self.early: dict[int, Token] = {}
        self.moves = 0
        self.reason = ""
        """Why it had to leave its last instance."""
        self.target: Target | None = None
        self.candidate: Candidate | None = None


class Counters(Struct, kw_only=True):
    """Since start."""

    submitted: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    refused: int = 0
    moved: int = 0
    tokens: int = 0
    doubles: int = 0


class RequestTable:
    """All requests in flight. Called from the event loop only."""

    def __init__(
        self,
        routers: dict[str, Router],
        events: FinishListener,
        *,
        max_inflight: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`routers` by model name: one per model that is served."""
        self._routers = routers
        self._events = events
        self._max_inflight = max_inflight
        self._now = now
        self._flights: dict[str, Flight] = {}
        self._stranded: dict[str, Flight] = {}
        self._targets: dict[str, Target] = {}
        self.counters = Counters()

    # ------------------------------------------------------------ instances

    def admit(self, target: Target) -> None:
        """Route requests to it from now on, first those that wait for one like it."""
        self._targets[target.instance] = target
        for flight in [one for one in self._stranded.values() if one.request.model == target.model]:
            self._move(flight, flight.reason)

    def stop_admitting(self, instance: str) -> None:
        """No new requests; those on it go on."""
        self._targets.pop(instance, None)

    def stats(self, stats: InstanceStats) -> None:
        if stats.instance in self._targets:
            self._targets[stats.instance].stats = stats

    def move_requests(self, instance: str, reason: str) -> None:
        """The instance has failed: its requests go on elsewhere from prompt + tokens so far.

        Those for which there is no other now wait for its successor, as long as their client does.
        """
        self.stop_admitting(instance)
        for flight in list(self._flights.values()):
            if flight.target is not None and flight.target.instance == instance:
                self._move(flight, reason)

    # ------------------------------------------------------------ front door

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        if request.model not in self._routers:
            raise RequestError(
                f"The model {request.model!r} does not exist. Served here: {', '.join(self._routers)}.",
                status=404,
                param="model",
                code="model_not_found",
            )
        if len(self._flights) >= self._max_inflight:
            self.counters.refused += 1
            raise RequestError(
                f"{len(self._flights)} requests are in flight, the most this server takes.",
                status=429,
                code="rate_limit_exceeded",
                retry_after_s=RETRY_AFTER_S,
            )
        if request.id in self._flights:
            raise RequestError(f"A request with id {request.id!r} is in flight.", status=409, param="id")
        flight = Flight(request, sink, self._now())
        if not self._send(flight, exclude=()):
            self.counters.refused += 1
            raise self._no_instance(request.model)
        self._flights[request.id] = flight
        self.counters.submitted += 1

    def abort(self, request: str) -> None:
        flight = self._flights.get(request)
        if flight is None:
            return
        if flight.target is not None:
            flight.target.send(Abort(requests=(request,)))
        self.counters.aborted += 1
        self._leave(flight, "abort")

    # ------------------------------------------------------------ schedulers and workers

    def tokens(self, message: Tokens) -> None:
        for token in message.tokens:
            flight = self._flights.get(token.request)
            if flight is None or flight.target is None or flight.target.instance != message.instance:
                continue  # left, or moved away from there
            if token.position < len(flight.generated):
                self.counters.doubles += 1  # replayed after a preemption
            elif token.position > len(flight.generated):
                flight.early[token.position] = token  # from another node of the last stage
            else:
                try:
                    self._deliver(flight, token)
                except Exception:  # one broken stream must not cost the others of this step their tokens
                    log.exception("request %s: its stream failed", token.request)
                    self.abort(token.request)

    def lost(self, request: str, instance: str, reason: str) -> None:
        """Its instance can no longer serve it."""
        flight = self._flights.get(request)
        if flight is not None and flight.target is not None and flight.target.instance == instance:
            self._move(flight, reason)

    def refused(self, request: str, instance: str, status: int, reason: str) -> None:
        """Its scheduler did not take it: too long (400), or too many wait there (503)."""
        flight = self._flights.get(request)
        if flight is None or flight.target is None or flight.target.instance != instance:
            return
        if status == 400:
            self._fail(
                flight, RequestError(reason, status=400, param="messages", code="context_length_exceeded")
            )
        elif flight.moves < MOVES and self._elsewhere(flight):
            flight.moves += 1
        else:
            self._fail(
                flight,
                RequestError(reason, status=429, code="rate_limit_exceeded", retry_after_s=RETRY_AFTER_S),
            )

    # ------------------------------------------------------------ what is there

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    @property
    def stranded(self) -> int:
        """Those in flight whose instance has failed, and for which there is no other yet."""
        return len(self._stranded)

    def loads(self) -> dict[str, int]:
        """Requests in flight by instance; those with none are left out."""
        counts: dict[str, int] = {}
        for flight in self._flights.values():
            if flight.target is not None:
                counts[flight.target.instance] = counts.get(flight.target.instance, 0) + 1
        return counts

    def fail_all(self, reason: str) -> None:
        """End every request with an error: the system goes down."""
        for flight in list(self._flights.values()):
            if flight.target is not None:
                flight.target.send(Abort(requests=(flight.request.id,)))
            self._fail(flight, RequestError(reason, status=503, code="service_unavailable"))

    # ------------------------------------------------------------ inside

    def _send(self, flight: Flight, exclude: tuple[str, ...]) -> bool:
        """Pick an instance that can hold it and send it there; the next where one cannot be reached."""
        model, generated = flight.request.model, len(flight.generated)
        among = {
            t.instance: t
            for t in self._targets.values()
            if t.model == model and t.instance not in exclude and t.holds(flight.request, generated)
        }
        router = self._routers[model]
        while among:
            now = self._now()
            picked = router.pick(flight.route, [target.candidate() for target in among.values()], now)
            target = among.pop(picked.id)
            request = target.fitted(flight.request)
            if generated > len(request.generated):
                request = msgspec.structs.replace(request, generated=tuple(flight.generated))
            if target.send(Submit(request=request)):
                flight.target, flight.candidate = target, picked
                target.running += 1
                return True
            router.done(flight.route, picked, now)
            log.warning("instance %s cannot be reached", target.instance)
        return False

    def _elsewhere(self, flight: Flight) -> bool:
        """Send it to any other instance than its own."""
        before = flight.target
        self._let_go(flight)
        flight.early.clear()
        return self._send(flight, exclude=(before.instance,) if before else ())

    def _move(self, flight: Flight, reason: str) -> None:
        flight.reason = reason.partition("\n")[0]  # what follows are lines of a log, for operators alone
        try:
            if flight.moves >= MOVES:
                self._fail_moved(flight)
            elif self._elsewhere(flight):
                self._stranded.pop(flight.request.id, None)
                flight.moves += 1
                self.counters.moved += 1
            else:
                self._stranded[flight.request.id] = flight
        except Exception:  # a router is anyone's: its failure with one must not keep the others here
            log.exception("request %s cannot be routed", flight.request.id)
            self._fail_moved(flight)

    def _fail_moved(self, flight: Flight) -> None:
        self._fail(
            flight,
            RequestError(
                f"The instance that served this request has failed ({flight.reason}), "
                "and no other could go on.",
                status=503,
                code="service_unavailable",
                retry_after_s=RETRY_AFTER_S,
            ),
        )

    def _deliver(self, flight: Flight, token: Token) -> None:
        run = [token]
        while run[-1].finish is None and (following := flight.early.pop(run[-1].position + 1, None)):
            run.append(following)
        flight.generated += [one.token for one in run]
        self.counters.tokens += len(run)
        finish = run[-1].finish
        if finish is not None:
            self.counters.finished += 1
            self._leave(flight, finish)
        flight.sink.on_tokens(run)

    def _fail(self, flight: Flight, error: RequestError) -> None:
        self.counters.failed += 1
        self._leave(flight, "error")
        try:
            flight.sink.on_error(error)
        except Exception:  # one broken stream must not keep the others from being told
            log.exception("request %s: its stream failed", flight.request.id)

    def _leave(self, flight: Flight, finish: str) -> None:
        self._let_go(flight)
        del self._flights[flight.request.id]
        self._stranded.pop(flight.request.id, None)
        self._events.request_finished(
            request=flight.request.id,
            model=flight.request.model,
            finish=finish,
            prompt_tokens=len(flight.request.prompt_ids),
            output_tokens=len(flight.generated),
            seconds=self._now() - flight.started,
        )

    def _let_go(self, flight: Flight) -> None:
        """It is no longer on its instance; the router is told exactly once per pick."""
        target, candidate = flight.target, flight.candidate
        if target is None or candidate is None:
            return
        flight.target = flight.candidate = None
        target.running -= 1
        self._routers[flight.request.model].done(flight.route, candidate, self._now())

    def _no_instance(self, model: str) -> RequestError:
        return RequestError(
            f"No instance of {model!r} that can hold this request is ready.",
            status=503,
            code="service_unavailable",
            retry_after_s=5.0,
        )
