from __future__ import annotations

import json
from pathlib import Path

import pytest

from coral.cli.main import main


def test_what_is_installed_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    rows = {(row["kind"], row["name"]): row for row in json.loads(capsys.readouterr().out)}
    row = rows["router", "weighted-round-robin"]
    assert row["distribution"] == "coral-router-weighted-round-robin"
    assert row["version"]
    assert row["summary"]
    assert row["error"] is None
    assert rows["planner", "coral"]["distribution"] == "coral-llm"
    assert main(["plugins"]) == 0
    assert "weighted-round-robin" in capsys.readouterr().out


def test_a_broken_plugin_is_listed_with_its_error_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coral_broken_two.py").write_text("import no_such_module_\n")
    info = tmp_path / "coral_router_sick-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coral-router-sick\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[coral]\nrouter-sick = coral_broken_two\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["plugins", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (broken,) = [row for row in rows if row["error"]]
    assert (broken["name"], broken["distribution"], broken["version"]) == (
        "router-sick",
        "coral-router-sick",
        "2.0",
    )
    assert "No module named 'no_such_module_'" in broken["error"]
    config = tmp_path / "coral.yaml"
    text = (
        "models: [{name: a, source: x/y, slo: {prefill: 1s, decode: 1s},"
        " demand: {requests_per_s: 1, input_tokens: 9, output_tokens: 9}}]\n"
    )
    config.write_text(text)
    assert main(["config", "check", "-c", str(config)]) == 0
    capsys.readouterr()
    config.write_text(text + "router: sick\n")
    assert main(["config", "check", "-c", str(config)]) == 2
    shown = capsys.readouterr().err
    assert "router.use: router 'sick': plugin coral-router-sick 2.0 cannot be used" in shown
    assert "no_such_module_" in shown


def test_files_beside_a_config_are_listed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("1 / 0\n")
    (tmp_path / "coral.yaml").write_text("plugins: {paths: [mine.py]}\n")
    assert main(["plugins", "--json", "--config", str(tmp_path / "coral.yaml")]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["distribution"] == "mine.py"]
    assert "ZeroDivisionError" in row["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wheel", "x"], "no kind of plugin"),
        (["router", "My Policy"], "will not do as a name"),
        (["router", "-"], ""),
    ],
)
def test_what_cannot_be_written(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["plugins", "new", "router", "a", "--into", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
