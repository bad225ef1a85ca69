"""The demand of one model, measured: what is asked for, whether or not there was room for it.

A rate over the half-life, a quick one over a fifth of it for what jumps, and the sizes of finished requests.
What a plan is made for is a blend with the config's demand, which stands in as long as little was seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from coral.core.operate.arrival_rate import DecayedCount
from coral.core.operate.request_sizes import RequestSizes, SizeCount, binned, one
from coral.types.model import Demand, RequestClass

QUICK = 5.0
"""The quick rate's half-life is so many times shorter."""
JUMP = 1.3
"""Times what is planned for, at which a rate has leapt."""
SIGMAS = 4.0
"""Standard deviations of a Poisson count beyond which that is no chance."""
PRIOR_REQUESTS = 50.0
"""The config's request sizes count as so many requests that were seen."""


class DemandSample(Struct, frozen=True, kw_only=True):
    """Arrivals of one model in the `span_s` seconds that ended at `at_s` (seconds since the epoch), and the
    sizes of the requests that finished then, binned."""

    at_s: float
    span_s: float
    requests: int
    sizes: tuple[SizeCount, ...] = ()


class Measured(Struct, frozen=True, kw_only=True):
    """`age_s`: how long it has been measured. `sizes_seen`: requests whose sizes are known, the recent ones
    counting most. Rates per second; `window_s`: what the quick one stands for."""

    age_s: float
    requests_per_s: float
    quick_per_s: float
    window_s: float
    sizes_seen: float
    classes: tuple[RequestClass, ...]
    input_tokens_quantile: float

    @property
    def input_tokens(self) -> float:
        return sum(c.share * c.input_tokens for c in self.classes)

    @property
    def output_tokens(self) -> float:
        return sum(c.share * c.output_tokens for c in self.classes)


class DemandMeter:
    """Times in seconds of one clock. `percentile`: that of the model's SLO."""

    def __init__(self, half_life_s: float, percentile: float, now: float) -> None:
        self._half_life_s, self._percentile = half_life_s, percentile
        self._since = self._sampled = now
        self._rate = DecayedCount(half_life_s, now)
        self._quick = DecayedCount(half_life_s / QUICK, now)
        self._sizes = RequestSizes(half_life_s)
        self._arrivals = 0
        self._finished: list[SizeCount] = []

    def arrived(self, now: float) -> None:
        """Somebody asked for it, also where there was no room."""
        self._rate.add(now)
        self._quick.add(now)
        self._arrivals += 1

    def finished(self, now: float, input_tokens: int, output_tokens: int) -> None:
        count = one(input_tokens, output_tokens)
        self._sizes.add(now, count)
        self._finished.append(count)
        if len(self._finished) > 1000:
            self._finished = list(binned(self._finished))

    def sample(self, now: float, at_s: float) -> DemandSample:
        """Since the last one. `at_s`: now, in seconds since the epoch."""
        span_s, self._sampled = now - self._sampled, now
        arrivals, self._arrivals = self._arrivals, 0
        finished, self._finished = self._finished, []
        return DemandSample(at_s=at_s, span_s=span_s, requests=arrivals, sizes=binned(finished))

    def restore(self, samples: Sequence[DemandSample], now: float) -> None:
        """As if it had measured these until just now: the time in which nobody measured is left out."""
        if not samples:
            return
        end = max(sample.at_s for sample in samples)
        self._since = now - max(end - sample.at_s + sample.span_s for sample in samples)
        self._rate = DecayedCount(self._half_life_s, self._since)
        self._quick = DecayedCount(self._half_life_s / QUICK, self._since)
        for sample in sorted(samples, key=lambda one: one.at_s):
            at = now - (end - sample.at_s)
            self._rate.add(at, sample.requests)
            self._quick.add(at, sample.requests)
            for size in sample.sizes:
                self._sizes.add(at, size)

    def measured(self, now: float) -> Measured:
        return Measured(
            age_s=now - self._since,
            requests_per_s=self._rate.rate(now),
            quick_per_s=self._quick.rate(now),
            window_s=self._quick.window_s(now),
            sizes_seen=self._sizes.weight(now),
            classes=self._sizes.classes(),
            input_tokens_quantile=self._sizes.input_quantile(self._percentile),
        )


def leaps(count: float, expected: float) -> bool:
    """Whether so many arrivals, where so many were expected, are more than chance and worth acting on."""
    return count >= JUMP * expected and count - expected >= SIGMAS * math.sqrt(max(1.0, expected))


def planned_demand(
    configured: Demand,
    measured: Measured,
    *,
    half_life_s: float,
    least_share: float,
    expected_per_s: float | None = None,
) -> Demand:
    """What to plan for. `expected_per_s`: a forecast, in place of the measured rate. `least_share`: of the
    config's rate, below which none goes.

    After one half-life what is measured counts half, then ever more; sizes by how many requests were seen.
    A rate that has leapt beyond all that counts at once.
    """
    trust = 1.0 - math.exp2(-measured.age_s / half_life_s)
    seen = measured.requests_per_s if expected_per_s is None else expected_per_s
    rate = trust * seen + (1.0 - trust) * configured.requests_per_s
    if leaps(measured.quick_per_s * measured.window_s, rate * measured.window_s):
        rate = measured.quick_per_s
    known = measured.sizes_seen / (measured.sizes_seen + PRIOR_REQUESTS) if measured.classes else 0.0
    shares = [(configured.classes, 1.0 - known), (measured.classes, known)]
    classes = tuple(
        RequestClass(input_tokens=c.input_tokens, output_tokens=c.output_tokens, share=c.share * part)
        for some, part in shares
        for c in some
        if c.share * part > 0
    )
    quantile = (1.0 - known) * configured.input_tokens_quantile + known * measured.input_tokens_quantile
    return Demand(
        requests_per_s=max(rate, least_share * configured.requests_per_s),
        classes=classes,
        input_tokens_quantile=quantile,
    )
