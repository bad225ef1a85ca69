from __future__ import annotations

from typing import Any

import pytest

from coral.core.config.overrides import BadOverride, Override, apply_override, parse_overrides, parse_set


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("plan.every=3m", ("plan", "every"), "3m"),
        ("models.0.slo.prefill=2s", ("models", "0", "slo", "prefill"), "2s"),
        ("models[0].name=a", ("models", "0", "name"), "a"),
        ('engine.args."rope.scale"=2', ("engine", "args", "rope.scale"), 2),
        ("engine.args.'a b'=[1, 2]", ("engine", "args", "a b"), [1, 2]),
        ('engine.args."a\\"b"=x', ("engine", "args", 'a"b'), "x"),
        ("solver.gap=1e-4", ("solver", "gap"), 1e-4),
        ("serve.disaggregate=true", ("serve", "disaggregate"), True),
        ("engine.args.x=a=b", ("engine", "args", "x"), "a=b"),
        ("generate.max_stages=", ("generate", "max_stages"), None),
        ("router={use: least-load}", ("router",), {"use": "least-load"}),
    ],
)
def test_paths_and_values(text: str, keys: tuple[str, ...], value: Any) -> None:
    assert parse_set(text) == Override(keys, value, "--set")


@pytest.mark.parametrize(
    "text", ["", "=1", "plan", "plan.=1", ".plan=1", "a..b=1", 'a."b=1', "a=[1", "a=b: c: d", "a[x]=1"]
)
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(BadOverride):
        parse_set(text)


TREE = {"models": [{"name": "a"}, {"name": "b"}], "router": "least-load", "plan": None}


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("models.1.name=c", ("models", 1, "name"), "c"),
        ("models.2.name=c", ("models", 2, "name"), "c"),
        ("plan.every=3m", ("plan", "every"), "3m"),
        ("serve.http=x", ("serve", "http"), "x"),
        ("router.use=other", ("router", "use"), "other"),
    ],
)
def test_applied(text: str, path: tuple[str | int, ...], value: Any) -> None:
    tree, where = apply_override(TREE, parse_set(text))
    assert where == path
    for key in path:
        tree = tree[key]
    assert tree == value
    assert TREE == {"models": [{"name": "a"}, {"name": "b"}], "router": "least-load", "plan": None}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models.3.name=c", "has 2 item"),
        ("models.x.name=c", "is a list"),
        ("models.0.name.first=c", "is a str"),
    ],
)
def test_what_cannot_be_applied(text: str, said: str) -> None:
    with pytest.raises(BadOverride, match=said):
        apply_override(TREE, parse_set(text))


def test_the_environment_comes_before_the_command_line() -> None:
    env = {"CORAL__PLAN__EVERY": "3m", "CORAL_TRACE_HOOKS": "1", "CORAL__MODELS__0__NAME": "x", "HOME": "/"}
    found, faults = parse_overrides(["plan.every=4m", "oops"], env)
    assert [(o.keys, o.value, o.origin) for o in found] == [
        (("models", "0", "name"), "x", "CORAL__MODELS__0__NAME"),
        (("plan", "every"), "3m", "CORAL__PLAN__EVERY"),
        (("plan", "every"), "4m", "--set"),
    ]
    assert [fault.path for fault in faults] == ["--set oops"]


def test_a_bad_variable_is_named() -> None:
    _, faults = parse_overrides([], {"CORAL__PLAN____X": "1", "CORAL__A": "[1"})
    assert [fault.path for fault in faults] == [
        "environment variable CORAL__A",
        "environment variable CORAL__PLAN____X",
    ]


@pytest.mark.parametrize(
    ("tree", "text", "value"),
    [
        ({"plan": {"planner": "coral"}}, "plan.planner.form=paper", {"use": "coral", "form": "paper"}),
        (
            {"models": [{"engine": "mock"}]},
            "models.0.engine.step_tokens=8",
            {"use": "mock", "step_tokens": 8},
        ),
        ({"clouds": ["local"]}, "clouds.0.x=1", {"use": "local", "x": 1}),
    ],
)
def test_a_section_given_by_its_name_alone_takes_keys(tree: Any, text: str, value: Any) -> None:
    placed, where = apply_override(tree, parse_set(text))
    for key in where[:-1]:
        placed = placed[key]
    assert placed == value


def test_text_inside_a_section_takes_no_keys() -> None:
    with pytest.raises(BadOverride, match="is a str, which has no key x"):
        apply_override({"engine": {"python": "bin/python"}}, parse_set("engine.python.x=1"))
