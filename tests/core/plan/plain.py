"""The allocation with all of its options, written as a textbook would: one bin per machine, one row per
scenario, big-M where something depends on what is used. Solved by scipy; small worlds only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from coral.testing.worlds import INPUT_TOKENS, OUTPUT_TOKENS, World
from coral.types.hardware import Domain, MachineType, Market, NodeType
from coral.types.model import ModelSpec
from coral.types.placement import Template

PER_REQUEST = {"prefill": INPUT_TOKENS, "decode": OUTPUT_TOKENS, "mixed": 1.0}
MANY = 1000.0
"""More instances of a column than any world has room for."""

Terms = dict[int, float]
Place = tuple[Domain, Market | None]


@dataclass
class Rows:
    """A program written row by row."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def variable(self, cost: float = 0.0, upper: float = np.inf, *, integral: bool = True) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        self.integral.append(int(integral))
        return len(self.cost) - 1

    def row(self, terms: Terms, lower: float = -np.inf, upper: float = np.inf) -> None:
        self.rows.append((dict(terms), lower, upper))

    def least(self) -> float | None:
        matrix = np.zeros((len(self.rows), len(self.cost)))
        for i, (terms, _, _) in enumerate(self.rows):
            for j, value in terms.items():
                matrix[i, j] += value
        result = milp(
            c=np.array(self.cost),
            integrality=np.array(self.integral),
            bounds=Bounds(np.zeros(len(self.cost)), np.array(self.upper)),
            constraints=LinearConstraint(
                matrix, [low for _, low, _ in self.rows], [up for _, _, up in self.rows]
            ),
            options={"mip_rel_gap": 0.0},
        )
        return float(result.fun) if result.success else None


@dataclass(frozen=True)
class Bin:
    kind: MachineType
    domain: Domain
    market: Market
    price: float
    per_h: float
    held: str


@dataclass(frozen=True)
class Column:
    """ν of a template in a place; `rate` is what is to be expected of one."""

    variable: int
    model: str
    phase: str
    place: Place
    rate: float
    template: Template


class Plain:
    """The program of a world in which all demand is to be met."""

    def __init__(self, world: World) -> None:
        self.view, self.library = world.view, world.library
        self.rows = Rows()
        self.models = {m.name: m for m in self.view.models}
        self.bins = self._bins()
        preempted = any(b.per_h for b in self.bins) or any(o.preemption_per_h for o in self.view.offers)
        self.apart = self.view.options.spot_share < 1 or preempted
        self.domains = sorted({o.domain for o in self.view.offers} | {m.domain for m in self.view.machines})
        self.columns: list[Column] = []
        self.taken: list[int] = []
        self._instances()
        self._machines()
        for model in self.view.models:
            if model.demand.requests_per_s > 0:
                self._model(model)
        if self.view.options.budget_usd_h is not None:
            prices = {t: b.price for t, b in zip(self.taken, self.bins, strict=True)}
            self.rows.row(prices, upper=self.view.options.budget_usd_h)

    def least(self) -> float | None:
        return self.rows.least()

    def _bins(self) -> list[Bin]:
        rates: dict[tuple[Domain, str, Market], float] = {}
        for offer in self.view.offers:
            rates[offer.domain, offer.machine_type.name, offer.market] = offer.preemption_per_h
        found = []
        for m in self.view.machines:
            key = (m.domain, m.machine_type.name, m.market)
            found.append(
                Bin(
                    m.machine_type,
                    m.domain,
                    m.market,
                    m.price_usd_h,
                    rates.get(key, m.preemption_per_h),
                    m.id,
                )
            )
        for o in self.view.offers:
            new = Bin(o.machine_type, o.domain, o.market, o.price_usd_h, o.preemption_per_h, "")
            found += [new] * o.obtainable
        return found

    def _fits(self, kind: NodeType, bin: Bin, place: Place) -> bool:
        domain, market = place
        size = kind.count <= bin.kind.gpus if self.view.options.slices else kind.count == bin.kind.gpus
        return bin.kind.gpu == kind.gpu and bin.domain == domain and market in (None, bin.market) and size

    def _price(self, kind: NodeType, place: Place, *, mean: bool) -> float:
        """Of a node's share of its machine: the mean over types; of whole ones the cheapest, or the mean."""
        domain, market = place
        there = {
            (b.kind.name, b.market, b.price, bool(b.held)): (b.price, b.kind.gpus)
            for b in self.bins
            if b.domain == domain and market in (None, b.market) and b.kind.gpu == kind.gpu
        }
        if self.view.options.slices:
            each = [price / gpus for price, gpus in there.values()]
            return kind.count * sum(each) / len(each) if each else 0.0
        whole = [price for price, gpus in there.values() if gpus == kind.count]
        return (sum(whole) / len(whole) if mean else min(whole)) if whole else 0.0

    def _expected(self, template: Template, place: Place, model: ModelSpec) -> tuple[float, float]:
        """Throughput to be expected, and the cost of starting again, USD/h."""
        lost = 0.0
        for kind, count in template.nodes.items():
            lost += count * max((b.per_h for b in self.bins if self._fits(kind, b, place)), default=0.0)
        hours = model.initialization_s / 3600.0
        price = sum(n * self._price(kind, place, mean=False) for kind, n in template.nodes.items())
        return template.throughput / (1 + lost * hours), lost * hours * price

    def _instances(self) -> None:
        self.nodes: dict[tuple[Place, NodeType], Terms] = defaultdict(dict)
        markets: tuple[Market | None, ...] = ("on_demand", "spot") if self.apart else (None,)
        places: list[Place] = list(product(self.domains, markets))
        for (name, phase), templates in self.library.templates.items():
            if name not in self.models:
                continue
            model = self.models[name]
            share = model.initialization_s / self.view.options.amortize_s
            for template, place in product(templates, places):
                new = sum(n * self._price(kind, place, mean=False) for kind, n in template.nodes.items())
                rate, again = self._expected(template, place, model)
                variable = self.rows.variable(share * new + again)
                self.columns.append(Column(variable, name, phase, place, rate, template))
                for kind, count in template.nodes.items():
                    self.nodes[place, kind][variable] = float(count)
        self.pins: dict[str, Terms] = defaultdict(dict)
        held = {m.id: m for m in self.view.machines}
        for one in self.view.running:
            market = next(iter({held[node.machine_id].market for node in one.nodes}))
            place = (one.domain, market if self.apart else None)
            rate, again = self._expected(one.template, place, self.models[one.template.model])
            variable = self.rows.variable(again, 1.0)
            self.columns.append(
                Column(variable, one.template.model, one.template.phase, place, rate, one.template)
            )
            for node in one.nodes:
                pins = self.pins[node.machine_id]
                pins[variable] = pins.get(variable, 0.0) + len(node.devices)

    def _machines(self) -> None:
        slices = self.view.options.slices
        slowest = max((m.initialization_s for m in self.view.models), default=0.0)
        holders: dict[tuple[Place, NodeType], Terms] = defaultdict(dict)
        for bin in self.bins:
            new = 0.0 if bin.held else slowest / self.view.options.amortize_s
            again = bin.per_h * slowest / 3600.0
            taken = self.rows.variable(bin.price * (1 + (new + again if slices else 0.0)), 1.0)
            self.taken.append(taken)
            inside: Terms = {taken: -float(bin.kind.gpus)}
            for place, kind in list(self.nodes):
                if self._fits(kind, bin, place):
                    variable = self.rows.variable()
                    inside[variable] = float(kind.count)
                    holders[place, kind][variable] = -1.0
            self.rows.row({**inside, **self.pins.get(bin.held, {})}, upper=0.0)
        for key, users in self.nodes.items():
            self.rows.row({**users, **holders[key]}, upper=0.0)

    def _model(self, model: ModelSpec) -> None:
        mine = [c for c in self.columns if c.model == model.name]
        needed = model.demand.requests_per_s
        self._serve(model, mine, needed)
        share = self.view.options.spot_share
        if share < 1:
            self._serve(model, [c for c in mine if c.place[1] != "spot"], (1 - share) * needed)
        if model.survive_zone:
            for zone in self.domains:
                left = [c for c in mine if c.place[0] != zone]
                self._serve(model, left, model.survive_zone * needed)
        if model.survive_machine:
            assert not self.view.options.slices
            for gone in mine:
                used = self.rows.variable(upper=1.0)
                self.rows.row({gone.variable: 1.0, used: -MANY}, upper=0.0)
                self._serve(model, mine, model.survive_machine * needed, gone=gone, used=used)
        if model.max_gpus is not None:
            gpus = {c.variable: sum(k.count * n for k, n in c.template.nodes.items()) for c in mine}
            self.rows.row({v: float(n) for v, n in gpus.items()}, upper=float(model.max_gpus))
        if model.max_cost_usd_h is not None:
            price = {
                c.variable: sum(self._price(k, c.place, mean=True) * n for k, n in c.template.nodes.items())
                for c in mine
            }
            self.rows.row(price, upper=model.max_cost_usd_h)

    def _serve(
        self,
        model: ModelSpec,
        columns: list[Column],
        requests_per_s: float,
        gone: Column | None = None,
        used: int | None = None,
    ) -> None:
        """Requests/s by the mixed way, and by prefill and decode, in one domain where these are coupled; all
        of it without one instance of `gone` where `used` is 1."""
        utilization = self.view.options.target_utilization
        total: Terms = {}
        ways: list[tuple[tuple[str, ...], Domain | None]] = []
        apart = tuple(phase for phase in model.phases if phase != "mixed")
        if apart:
            coupled = self.view.options.couple_phases
            ways += [(apart, d) for d in self.domains] if coupled else [(apart, None)]
        if "mixed" in model.phases:
            ways.append((("mixed",), None))
        for phases, domain in ways:
            x = self.rows.variable(integral=False)
            total[x] = 1.0
            for phase in phases:
                terms: Terms = {x: -PER_REQUEST[phase] / utilization}
                for c in columns:
                    if c.phase == phase and domain in (None, c.place[0]):
                        terms[c.variable] = c.rate
                hit = gone is not None and gone.phase == phase and domain in (None, gone.place[0])
                if gone is not None and used is not None and hit:
                    terms[used] = -gone.rate
                self.rows.row(terms, lower=0.0)
        if used is not None:
            total[used] = -requests_per_s
            self.rows.row(total, lower=0.0)
        else:
            self.rows.row(total, lower=requests_per_s)


def least_cost(world: World) -> float | None:
    """None where the demand cannot be met with all that is asked beside it."""
    return Plain(world).least()
