from __future__ import annotations

import pytest
from msgspec.structs import replace

from coral.core.plan.explain.what_if import what_if
from coral.errors import UsageError
from coral.testing.tables import HOME, UNIFORM_SLO, offer, spec, template, view
from coral.types.plan import RunningInstance

VIEW = view([spec("m-1.5", 4.0), spec("other", 1.0)], [offer("a", 1.0, 3), offer("b", 2.0)])
KEY = "here/one:a.1:on_demand"


def test_each_figure_goes_where_it_belongs() -> None:
    found = what_if(
        VIEW,
        [
            f'offers."{KEY}".price=0.25',
            f"offers.'{KEY}'.obtainable=7",
            'models."m-1.5".demand=12',
            'models."m-1.5".slo.decode=80ms',
            "models.other.priority=2",
        ],
    )
    changed = found.view.offers[0]
    assert (changed.price_usd_h, changed.obtainable) == (0.25, 7)
    assert isinstance(changed.obtainable, int)
    assert found.view.offers[1] == VIEW.offers[1]
    one, other = found.view.models
    assert one.demand == replace(VIEW.models[0].demand, requests_per_s=12.0)
    assert one.slo == replace(UNIFORM_SLO, decode_s=0.08)
    assert (other.priority, other.slo) == (2.0, UNIFORM_SLO)
    assert [(c.path, c.before, c.after) for c in found.changes] == [
        (f'offers."{KEY}".price', 1.0, 0.25),
        (f'offers."{KEY}".obtainable', 3, 7),
        ('models."m-1.5".demand', 4.0, 12.0),
        ('models."m-1.5".slo.decode', 0.1, 0.08),
        ('models."other".priority', 1.0, 2.0),
    ]
    assert found.rebuilt == ("m-1.5",)


def test_the_last_of_two_counts() -> None:
    found = what_if(VIEW, ["models.other.demand=5", "models.other.demand=0"])
    assert found.view.models[1].demand.requests_per_s == 0.0
    assert found.rebuilt == ()


def test_limits_are_set_and_dropped() -> None:
    found = what_if(
        VIEW,
        [
            "plan.budget=5",
            "plan.budget=null",
            "plan.spot_share=0.5",
            "models.other.max_gpus=4",
            "models.other.max_cost=2.5",
            "models.other.floor=0.25",
            "models.other.survive_zone=0.5",
            "models.other.survive_machine=1",
            f'offers."{KEY}".preemption=0.1',
        ],
    )
    assert (found.view.options.budget_usd_h, found.view.options.spot_share) == (None, 0.5)
    assert [(c.before, c.after) for c in found.changes[:2]] == [(None, 5.0), (5.0, None)]
    spec = found.view.models[1]
    assert (spec.max_gpus, spec.max_cost_usd_h, spec.floor) == (4, 2.5, 0.25)
    assert (spec.survive_zone, spec.survive_machine) == (0.5, 1.0)
    assert found.view.offers[0].preemption_per_h == 0.1


@pytest.mark.parametrize(("slo", "kept"), [("3s", True), ("500ms", False)])
def test_what_runs_goes_on_under_a_looser_slo_only(slo: str, kept: bool) -> None:
    running = RunningInstance(id="i", template=template("other", "a", 5.0), domain=HOME)
    found = what_if(replace(VIEW, running=(running,)), [f"models.other.slo.prefill={slo}"])
    assert (found.view.running[0].template.slo == found.view.models[1].slo) is kept


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("modles.other.demand=1", "did you mean models?"),
        ("models.othr.demand=1", 'did you mean models."other"?'),
        ("models.other.demnd=1", "did you mean demand?"),
        ("models.other=1", "there is demand, slo.prefill, slo.decode, priority, floor, max_gpus"),
        ("models.other.floor=1.5", "no share between 0 and 1"),
        ("models.other.max_gpus=2.5", "not a whole number"),
        ("plan.bugdet=1", "plan has no bugdet (did you mean budget?)"),
        ("plan=1", "plan has no value; there is budget, spot_share"),
        ("models=1", 'models needs a name; there is models."m-1.5", models."other"'),
        ("models.m-1.5.demand=1", 'quote the name: models."m-1.5"'),
        (f"offers.{KEY}.price=1", f'quote the name: offers."{KEY}"'),
        ('offers."here/one:a.1:on_demnd".price=1', f'did you mean offers."{KEY}"?'),
        (f'offers."{KEY}".prise=1', "did you mean price?"),
        (f'offers."{KEY}".price=-1', "-1 is negative"),
        (f'offers."{KEY}".price=.nan', "not a number"),
        (f'offers."{KEY}".obtainable=1.5', "not a whole number"),
        (f'offers."{KEY}".obtainable=true', "not a number"),
        ("models.other.demand=.inf", "not a number"),
        ("models.other.demand=much", "not a number"),
        ("models.other.slo.decode=0", "must be more than 0"),
        ("models.other.slo.decode=3parsec", "not a duration"),
        ("models.other.priority=0", "must be more than 0"),
        ("demand", "expected path=value"),
        ("", "expected path=value"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_next_step(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        what_if(VIEW, ["models.other.demand=3", text])
    assert says in str(refused.value)
    assert f"--what-if {text}:" in str(refused.value)


def test_all_faults_are_told() -> None:
    with pytest.raises(UsageError) as refused:
        what_if(VIEW, ["models.a.demand=1", "models.b.demand=1"])
    assert str(refused.value).count("--what-if") == 2
