from __future__ import annotations

import json
from pathlib import Path

import pytest

from coral.cli.main import main
from coral.core.config.jsonschema import config_schema
from coral.testing.stand_ins import stand_in_registry

GOOD = """\
models:
  - name: a
    source: x/y
    slo: {prefill: 1600ms, decode: 100ms}
    demand: {requests_per_s: 10, input_tokens: 1155, output_tokens: 211}
"""

FIVE = """\
models:
  - name: a
    source: x/y
    slo: {prefil: 1600ms, prefill: 2s, decode: 100ms, percentile: 95}
    demand: {requests_per_s: -10, input_tokens: 1155, output_tokens: 211}
router: {use: weighted-round-robbin}
solver: {gap: 1e-4, time_limit: 30 parsecs}
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "coral.yaml").write_text(GOOD)
    return str(tmp_path / "coral.yaml")


@pytest.fixture
def five(tmp_path: Path) -> str:
    (tmp_path / "five.yaml").write_text(FIVE)
    return str(tmp_path / "five.yaml")


def test_five_faults_give_five_messages_and_exit_2(five: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", five]) == 2
    head, *lines = capsys.readouterr().err.splitlines()
    assert head == f"coral: 5 fault(s) in {five}"
    assert [line.split(": ")[0].strip() for line in lines] == [
        "models[0].slo.percentile",
        "models[0].slo.prefil",
        "models[0].demand.requests_per_s",
        "solver.time_limit",
        "router.use",
    ]
    assert "did you mean prefill?" in lines[1]
    assert "did you mean weighted-round-robin?" in lines[4]


@pytest.mark.parametrize("command", [["serve"], ["plan"], ["config", "show"]])
def test_no_command_starts_anything_with_faults(
    command: list[str], five: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--config", five]) == 2
    shown = capsys.readouterr()
    assert "5 fault(s)" in shown.err
    assert shown.out == ""


def test_faults_as_json(five: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--json", "-c", five]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert len(said["faults"]) == 5
    assert {fault["path"] for fault in said["faults"]} >= {"router.use", "solver.time_limit"}


def test_no_faults(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "-c", good]) == 0
    assert "no faults (1 model(s): a)" in capsys.readouterr().out
    assert main(["config", "check", "-c", good, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "models": ["a"], "faults": []}


def test_show(good: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORAL__PLAN__EVERY", "3m")
    assert main(["config", "show", "-c", good, "--set", "models.0.slo.prefill=2s"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["plan.every", "180.0", "CORAL__PLAN__EVERY"] in lines
    assert ["models[0].slo.prefill", "2.0", "--set"] in lines
    assert ["models[0].name", "a", "coral.yaml:2"] in lines
    assert ["serve.http", "127.0.0.1:8000", "default"] in lines
    assert main(["config", "show", "-c", good, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["config"]["plan"]["every"] == 180
    assert said["origins"]["plan.every"] == "CORAL__PLAN__EVERY"


def test_the_schema_has_the_options_of_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    routers = [branch["title"] for branch in schema["$defs"]["RouterUse"]["oneOf"] if "title" in branch]
    assert "router weighted-round-robin" in routers
    assert schema["required"] == ["models"]


def test_the_schema_by_kind() -> None:
    schema = config_schema(stand_in_registry())
    aws, local, name = schema["$defs"]["CloudUse"]["oneOf"]
    assert aws["properties"]["use"]["const"] == "aws"
    assert set(aws["properties"]) == {"use", "regions", "token"}
    assert aws["required"] == ["use"]
    assert aws["additionalProperties"] is False
    assert local["properties"]["use"]["const"] == "local"
    assert name["enum"] == ["aws", "local"]
    (highs, _) = schema["$defs"]["SolverUse"]["oneOf"]
    assert set(highs["properties"]) == {"use", "time_limit", "gap", "work_limit", "regions", "token"}
    assert highs["required"] == []
    references = {part.rpartition("#/$defs/")[2] for part in _references(schema)}
    assert references
    assert references <= set(schema["$defs"])


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [ref for inner in value.values() for ref in _references(inner)]
    if isinstance(value, list):
        return [ref for inner in value for ref in _references(inner)]
    return []
