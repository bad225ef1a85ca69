"""Where requests can go and what is there: instances by model, one pick and one `done` for every leg."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum

from coral.core.serve.coordinator.requests.flight import Flight, LiveLeg
from coral.core.serve.coordinator.target import Target
from coral.core.serve.net.wire import Abort
from coral.hookspecs.router import Router
from coral.types.hardware import Domain
from coral.types.request import Leg

log = logging.getLogger("coral.coordinator")


class Chance(Enum):
    """What came of looking for an instance. `FULL`: those that could hold it are full, or not to be
    reached; `LATER`: it has failed on all of them only just; `NOWHERE`: none of them can hold it.
    """

    SENT = 1
    FULL = 2
    LATER = 3
    NOWHERE = 4


class Routes:
    """Targets of all models. A first leg goes to a mixed or a prefill instance, a prefill leg only
    where the domain has a decode instance for what follows that does not keep failing. Where there are
    neither, but other instances of the model, those serve the whole request: any instance can. So do they
    for one whose hand-over has failed again and again.
    """

    def __init__(
        self,
        routers: Mapping[str, Router],
        decode_routers: Mapping[str, Router],
        now: Callable[[], float],
    ) -> None:
        """Routers by model: `routers` for first legs, `decode_routers` for decode legs."""
        self._routers = routers
        self._decode_routers = decode_routers
        self._now = now
        self._targets: dict[str, dict[str, Target]] = {model: {} for model in routers}
        self._model_of: dict[str, str] = {}
        self._promised: dict[tuple[str, Domain], int] = {}
        """Tokens of KV of decode legs to come, whose prefill legs run."""
        self._unsaid: dict[str, tuple[Target, list[str]]] = {}
        """By instance: what it has to be told to abort, and could not be."""

    @property
    def promised(self) -> int:
        """Tokens of KV of all decode legs to come."""
        return sum(self._promised.values())

    def admit(self, target: Target) -> None:
        self._targets[target.model][target.instance] = target
        self._model_of[target.instance] = target.model

    def drop(self, instance: str) -> None:
        """Nothing more goes there; what is there goes on."""
        model = self._model_of.pop(instance, None)
        if model is not None:
            del self._targets[model][instance]

    def forget(self, instance: str) -> None:
        """It has failed: nothing is there any more."""
        self.drop(instance)
        self._unsaid.pop(instance, None)

    def say_again(self) -> None:
        """Aborts for those that could not be reached before: what nobody wants must not go on for ever."""
        for instance, (target, names) in list(self._unsaid.items()):
            if target.send(Abort(requests=tuple(names))):
                del self._unsaid[instance]

    def target(self, instance: str) -> Target | None:
        model = self._model_of.get(instance)
        return self._targets[model][instance] if model is not None else None

    def circuits(self, now: float) -> dict[str, float]:
        """Instances whose breaker is not closed, with the seconds until one request is let through."""
        return {
            target.instance: target.breaker.opens_in_s(now)
            for targets in self._targets.values()
            for target in targets.values()
            if not target.breaker.closed
        }

    # ------------------------------------------------------------ first legs

    def start(self, flight: Flight) -> Chance:
        """Send its first leg, if there is an instance that takes it now."""
        holders = self._holders(flight)
        if not holders:
            return Chance.NOWHERE
        now = self._now()
        holders = [one for one in holders if flight.avoided.get(one[0].instance, 0.0) <= now]
        if not holders:
            return Chance.LATER
        among = {
            target.instance: (target, kind)
            for target, kind in holders
            if target.takes(now) and (kind != "prefill" or self._decode_has_room(flight, target.domain, now))
        }
        router = self._routers[flight.model]
        while among:
            now = self._now()
            picked = router.pick(flight.route, [target.candidate() for target, _ in among.values()], now)
            target, kind = among.pop(picked.id)
            if target.send(flight.submit(kind, target)):
                leg = LiveLeg(kind, target, picked, target.need(flight.request, flight.base, kind))
                flight.first = leg
                self._begin(leg, now)
                if kind == "prefill":
                    self._promise(flight, leg)
                return Chance.SENT
            router.done(flight.route, picked, now)
            self._cannot_reach(target, now)
        return Chance.FULL

    def can_go_anywhere(self, flight: Flight) -> bool:
        """Whether any instance could hold it, full or not."""
        return bool(self._holders(flight))

    def _holders(self, flight: Flight) -> list[tuple[Target, Leg]]:
        """Instances that can hold its first leg, each with what that would be."""
        request, generated, now = flight.request, len(flight.generated), self._now()
        targets = self._targets[flight.model].values()
        followed: set[Domain] = set()
        if flight.may_hand_over:
            decoders = self._decoders(flight, generated)
            followed.update(target.domain for target in decoders if target.breaker.allows(now))
        holders: list[tuple[Target, Leg]] = []
        for target in targets:
            if target.phase == "decode":
                continue
            apart = target.phase == "prefill" and flight.left > 1
            kind: Leg = "prefill" if apart else "whole"
            if target.holds(request, generated, kind) and (not apart or target.domain in followed):
                holders.append((target, kind))
        return holders or [(t, "whole") for t in targets if t.holds(request, generated)]

    # ------------------------------------------------------------ decode legs

    def follow(self, flight: Flight) -> Chance:
        """Send its decode leg, if the domain of its prefill leg has an instance that takes it now."""
        first = flight.first
        assert first is not None
        holders = [t for t in self._decoders(flight, flight.base) if t.domain == first.target.domain]
        if not holders:
            return Chance.NOWHERE
        now = self._now()
        holders = [t for t in holders if flight.avoided.get(t.instance, 0.0) <= now]
        if not holders:
            return Chance.LATER
        among = {target.instance: target for target in holders if target.takes(now)}
        router = self._decode_router(flight.model)
        while among:
            now = self._now()
            picked = router.pick(flight.route, [target.candidate() for target in among.values()], now)
            target = among.pop(picked.id)
            if target.send(flight.submit("decode", target)):
                need = target.need(flight.request, flight.base, "decode")
                flight.second = LiveLeg("decode", target, picked, need)
                self._begin(flight.second, now)
                self._keep_promise(flight, first)
                return Chance.SENT
            router.done(flight.route, picked, now)
            self._cannot_reach(target, now)
        return Chance.FULL

    def _decoders(self, flight: Flight, generated: int) -> list[Target]:
        return [
            target
            for target in self._targets[flight.model].values()
            if target.phase == "decode" and target.holds(flight.request, generated)
        ]

    def _decode_has_room(self, flight: Flight, domain: Domain, now: float) -> bool:
        """Whether a decode leg that begins there soon has room, behind all that are to begin already."""
        room = sum(
            target.kv_tokens - target.held_tokens
            for target in self._decoders(flight, len(flight.generated))
            if target.domain == domain and target.takes(now)
        )
        return room > self._promised.get((flight.model, domain), 0)

    def _promise(self, flight: Flight, leg: LiveLeg) -> None:
        domain = leg.target.domain
        decoders = [t for t in self._decoders(flight, flight.base) if t.domain == domain]
        leg.promised = min(t.need(flight.request, flight.base, "decode") for t in decoders)
        key = (flight.model, domain)
        self._promised[key] = self._promised.get(key, 0) + leg.promised

    def _keep_promise(self, flight: Flight, leg: LiveLeg) -> None:
        if leg.promised:
            key = (flight.model, leg.target.domain)
            self._promised[key] -= leg.promised
            leg.promised = 0
            if not self._promised[key]:
                del self._promised[key]

    def _decode_router(self, model: str) -> Router:
        return self._decode_routers.get(model) or self._routers[model]

    # ------------------------------------------------------------ both

    def end_leg(self, flight: Flight, leg: LiveLeg, *, tell: bool) -> None:
        """It is no longer there, which its scheduler is told where it does not know it yet (`tell`)."""
        if flight.first is leg:
            flight.first = None
        elif flight.second is leg:
            flight.second = None
        else:
            return
        target, now = leg.target, self._now()
        target.running -= 1
        target.held_tokens -= leg.need
        self._keep_promise(flight, leg)
        if not leg.proved:
            target.breaker.withdrawn()
        router = self._decode_router(flight.model) if leg.kind == "decode" else self._routers[flight.model]
        if tell and not target.send(Abort(requests=(flight.name,))):
            self._unsaid.setdefault(target.instance, (target, []))[1].append(flight.name)
        try:
            router.done(flight.route, leg.candidate, now)
        except Exception:  # a router is anyone's: its failure must not keep a request from leaving
            log.exception("the router failed when request %s left %s", flight.id, target.instance)

    def _begin(self, leg: LiveLeg, now: float) -> None:
        leg.target.running += 1
        leg.target.held_tokens += leg.need
        leg.target.breaker.began(now)

    def _cannot_reach(self, target: Target, now: float) -> None:
        log.warning("instance %s cannot be reached", target.instance)
        target.breaker.began(now)
        self.failed_at(target, now)

    def failed_at(self, target: Target, now: float) -> None:
        """It has failed with a request."""
        if target.breaker.failed(now):
            log.warning(
                "instance %s keeps failing: no requests for %.0f s",
                target.instance,
                target.breaker.opens_in_s(now),
            )
