"""From the prefill to the decode instance: who is told what, and what becomes of a request whose one leg
breaks off.

The picture is in `coral.core.serve.net.messages.handover`. Tokens come by another socket than what schedulers
say: that a prefill leg has been handed over may be heard before its token.
"""

from __future__ import annotations

from coral.core.serve.coordinator.requests.counters import Counters
from coral.core.serve.coordinator.requests.flight import Flight, LiveLeg
from coral.core.serve.coordinator.requests.placing import Placing
from coral.core.serve.coordinator.requests.routes import Routes
from coral.core.serve.net.wire import GoOn, HandOver, KvDestination


class HandOvers:
    def __init__(self, routes: Routes, placing: Placing, counters: Counters) -> None:
        self._routes = routes
        self._placing = placing
        self._counters = counters

    def begun(self, flight: Flight, leg: LiveLeg) -> None:
        """Its prompt runs: a destination for its KV is wanted."""
        if leg is flight.first:
            self._placing.follow(flight)

    def kv_awaited(self, flight: Flight, leg: LiveLeg, to: KvDestination) -> None:
        """Its decode leg has a route: the prefill leg is told where."""
        first = flight.first
        if leg is not flight.second or first is None:
            return
        leg.to = to
        if not first.target.send(HandOver(request=flight.name, to=to)):
            self._placing.move(
                flight, f"{first.target.instance} cannot be reached", avoid=first.target.instance
            )
        elif len(flight.generated) > flight.base:
            self._go_on(flight, leg)

    def sampled(self, flight: Flight, leg: LiveLeg) -> None:
        """The prefill leg's token has come, and more are wanted."""
        second = flight.second
        if leg.handed_over:
            self._end_first(flight, leg)
        if second is None:
            self._placing.follow(flight)
        elif second.to is not None:
            self._go_on(flight, second)

    def handed_over(self, flight: Flight, leg: LiveLeg) -> None:
        """All KV is with the decode leg that the prefill leg was told of last, and it has left."""
        if leg is not flight.first:
            return
        leg.handed_over = True
        if flight.second is None or flight.second.to is None:
            self._placing.start_again(flight)  # with one that has failed meanwhile: the KV is gone
        elif len(flight.generated) > flight.base:
            self._end_first(flight, leg)

    def too_late(self, flight: Flight, instance: str, reason: str) -> None:
        """The prefill leg had handed its KV to an earlier decode leg when it was told of the present one."""
        second = flight.second
        if flight.giver == instance and flight.first is None and second is not None and not second.proved:
            self._placing.move(flight, reason)

    def _end_first(self, flight: Flight, leg: LiveLeg) -> None:
        self._routes.end_leg(flight, leg, tell=False)
        flight.giver = leg.target.instance
        self._counters.handed_over += 1
        self._placing.pump(flight.model)

    def _go_on(self, flight: Flight, second: LiveLeg) -> None:
        message = GoOn(request=flight.name, tokens=tuple(flight.generated[flight.base :]))
        if not second.target.send(message):
            self.broken(flight, second, f"{second.target.instance} cannot be reached", tell=True)

    # ------------------------------------------------------------ failures

    def broken(self, flight: Flight, leg: LiveLeg, reason: str, *, tell: bool) -> None:
        """One of its legs has failed, its only one or one of two. `tell`: its scheduler may not know it."""
        instance, first, second = leg.target.instance, flight.first, flight.second
        if leg.kind != "whole" and (second is None or not second.proved):
            flight.broken_hand_overs += 1
        if leg is second and self._has_kv(flight) and flight.may_hand_over:
            self._routes.end_leg(flight, leg, tell=tell)
            self._placing.follow_again(flight, reason, avoid=instance)
        elif leg is first and second is not None and second.proved:
            self._routes.end_leg(flight, leg, tell=tell)  # the decode leg has all it needs
        else:
            self._placing.move(flight, reason, avoid=instance, tell=tell)

    def _has_kv(self, flight: Flight) -> bool:
        """Whether the prefill leg still has it: what decodes already has got it all."""
        first, second = flight.first, flight.second
        return first is not None and not first.handed_over and not (second is not None and second.proved)

    def refused(self, flight: Flight, leg: LiveLeg) -> None:
        """A scheduler had no room for one of its legs."""
        if leg is flight.second and self._has_kv(flight):
            self._routes.end_leg(flight, leg, tell=False)
            self._placing.follow(flight)
        else:
            self._routes.end_leg(flight, leg, tell=False)
            self._placing.start_again(flight)
