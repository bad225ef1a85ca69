"""Where a request goes, and who waits for it: at first, again after a failure, and for its decode leg."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from coral.core.operate.drain_rate import DrainRate
from coral.core.operate.retry_budget import RetryBudget
from coral.core.serve.coordinator.requests import refusals
from coral.core.serve.coordinator.requests.counters import Counters
from coral.core.serve.coordinator.requests.flight import Flight
from coral.core.serve.coordinator.requests.line import Line
from coral.core.serve.coordinator.requests.options import RequestOptions
from coral.core.serve.coordinator.requests.routes import Chance, Routes
from coral.errors import RequestError
from coral.types.hardware import Domain

log = logging.getLogger("coral.coordinator")

AVOID_S = 0.25
"""How long a request stays away from an instance that has failed with it, the first time."""
AVOID_MOST_S = 10.0


class Ends(Protocol):
    """Whoever ends flights."""

    def fail(self, flight: Flight, error: RequestError) -> None: ...


class Placing:
    """Lines of those that wait, by model. `coming(model)`: whether an instance of it is on its way."""

    def __init__(
        self,
        routes: Routes,
        models: list[str],
        options: RequestOptions,
        counters: Counters,
        ends: Ends,
        now: Callable[[], float],
    ) -> None:
        self.coming: Callable[[str], bool] = lambda model: False
        self.rates = {model: DrainRate() for model in models}
        self.lines = {model: Line() for model in models}
        self._budget = RetryBudget(
            share=options.retry_share, per_s=options.retry_per_s, burst=options.retry_burst
        )
        self._routes = routes
        self._options = options
        self._counters = counters
        self._ends = ends
        self._now = now
        self._pumping: set[str] = set()
        self._stopped = False

    # ------------------------------------------------------------ new ones

    def take_in(self, flight: Flight) -> None:
        """Send it, or let it wait. RequestError where it can do neither."""
        line = self.lines[flight.model]
        chance = Chance.FULL if line.full else self._routes.start(flight)
        if chance is not Chance.SENT:
            if not self._routes.can_go_anywhere(flight) and not self.coming(flight.model):
                raise refusals.no_instance(flight.model)
            self._queue(line, flight)
            line.full = chance is Chance.FULL
        self._budget.earn()

    def _queue(self, line: Line, flight: Flight) -> None:
        now, rate, limit_s = self._now(), self.rates[flight.model], self._options.queue_timeout_s
        ahead = len(line) + 1
        wait_s = rate.wait_s(ahead, now)
        if len(line.new) >= self._options.queue_requests or (wait_s is not None and wait_s > limit_s):
            raise refusals.queue_full(
                flight.model, len(line), rate.retry_after_s(ahead, now, refusals.FAILED_S)
            )
        line.new[flight.id] = flight
        self._counters.queued += 1

    # ------------------------------------------------------------ those that were somewhere

    def move(self, flight: Flight, reason: str, *, avoid: str = "", tell: bool = True) -> None:
        """It goes on from prompt + tokens so far, at any instance but `avoid`, which has failed with it, and
        is told so where it does not know it (`tell`).

        Its legs end. Where there is no other now it waits, as long as its client does.
        """
        for leg in flight.legs:
            self._routes.end_leg(flight, leg, tell=tell or leg.target.instance != avoid)
        self.failed_with(flight, reason, avoid)
        if self._spent(flight):
            return
        self._return(flight)

    def start_again(self, flight: Flight) -> None:
        """It starts from prompt + tokens so far, next in line; that is no failure of anyone."""
        for leg in flight.legs:
            self._routes.end_leg(flight, leg, tell=True)
        self._return(flight)

    def failed_with(self, flight: Flight, reason: str, instance: str) -> None:
        """An instance has failed with it."""
        flight.reason = reason.partition("\n")[0]  # what follows are lines of a log, for operators alone
        flight.moves += 1
        flight.owes = True
        if instance:
            pause_s = min(AVOID_MOST_S, AVOID_S * 2 ** (flight.moves - 1))
            flight.avoided[instance] = self._now() + pause_s

    def _spent(self, flight: Flight) -> bool:
        """Whether it has gone on as often as it may; it is then ended."""
        if flight.moves <= self._options.retries_per_request:
            return False
        self._ends.fail(flight, refusals.gave_up(flight.reason, flight.moves - 1))
        return True

    def _return(self, flight: Flight) -> None:
        flight.begin_attempt()
        line = self.lines[flight.model]
        line.leave(flight)
        line.returned[flight.id] = flight
        self.pump(flight.model)

    # ------------------------------------------------------------ decode legs

    def follow(self, flight: Flight) -> None:
        """Its prefill leg runs: send its decode leg to an instance, now or when there is room."""
        if flight.first is None or flight.first.kind != "prefill" or flight.second is not None:
            return
        self.lines[flight.model].handing[flight.id] = flight
        self.pump(flight.model)

    def follow_again(self, flight: Flight, reason: str, *, avoid: str) -> None:
        """Its decode leg has failed; the prefill leg still has the KV."""
        self.failed_with(flight, reason, avoid)
        if not self._spent(flight):
            self.follow(flight)

    # ------------------------------------------------------------ whoever waits

    def leave(self, flight: Flight) -> None:
        """It waits no longer."""
        self.lines[flight.model].leave(flight)

    def stop(self) -> None:
        """The system ends: whoever waits is not sent anywhere any more."""
        self._stopped = True

    def pump(self, model: str) -> None:
        """Something may have changed: send those that can be sent, in order."""
        line = self.lines[model]
        if not line or self._stopped or model in self._pumping:
            return
        self._pumping.add(model)
        try:
            self._hand_on(line)
            self._start(line)
        finally:
            self._pumping.discard(model)

    def _hand_on(self, line: Line) -> None:
        """Within a domain nobody overtakes whoever finds its decode instances full."""
        full: set[Domain] = set()
        for flight in list(line.handing.values()):
            first = flight.first
            if flight.id not in line.handing or first is None or first.target.domain in full:
                continue
            match self._try(flight, self._routes.follow):
                case Chance.SENT:
                    line.handing.pop(flight.id, None)
                case Chance.FULL:
                    full.add(first.target.domain)
                case Chance.NOWHERE:
                    line.handing.pop(flight.id, None)
                    self.move(flight, flight.reason or "no decode instance is left in its domain")
                case _:
                    pass

    def _start(self, line: Line) -> None:
        """Whoever finds all instances full keeps those behind it from overtaking; whoever waits for
        another reason does not."""
        line.full = False
        for flight in line.starting():
            if flight not in line:
                continue
            chance = self._try(flight, self._routes.start)
            if chance is Chance.SENT:
                line.leave(flight)
            elif chance is Chance.FULL:
                line.full = True
                return

    def _try(self, flight: Flight, send: Callable[[Flight], Chance]) -> Chance | None:
        """None where it has been ended, or has to wait for the retry budget."""
        if flight.owes and not self._budget.spend(self._now()):
            return None
        try:
            chance = send(flight)
        except Exception:  # a router is anyone's: its failure with one must not keep the others here
            log.exception("request %s cannot be routed", flight.id)
            self._ends.fail(flight, refusals.cannot_be_routed())
            return None
        if flight.owes:
            if chance is Chance.SENT:
                flight.owes = False
                self._counters.moved += 1
            else:
                self._budget.give_back()
        return chance

    def tick(self) -> None:
        """Called every second or so: end the wait of those for which no room came, and look again."""
        now, limit_s = self._now(), self._options.queue_timeout_s
        for model, line in self.lines.items():
            for flight in list(line.starting()):
                if flight.moves == 0 and now - flight.started > limit_s:
                    retry_s = self.rates[model].retry_after_s(len(line), now, refusals.FAILED_S)
                    self._ends.fail(flight, refusals.no_room_came(model, limit_s, retry_s))
            self.pump(model)
