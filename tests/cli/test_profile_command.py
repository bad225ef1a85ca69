from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coral.cli.main import main
from coral.core.profile.measure import MeasuringRun
from coral.core.profile.records import read_records

CONFIG = """
models:
  - name: tiny
    source: ./nowhere
    dtype: float32
    slo: {prefill: 2s, decode: 200ms}
    demand: {requests_per_s: 2, input_tokens: 200, output_tokens: 50}
    shape: {architecture: LlamaForCausalLM, layers: 8, hidden: 64, heads: 4, kv_heads: 2, head_dim: 16,
            intermediate: 128, vocab: 320, max_positions: 4096}
engine: {use: mock, cost: {overhead_s: 0.001, layer_s: 0.0005, token_s: 0.00001, attend_s: 0.0000001}}
clouds:
  - use: local
    machines: [{name: box, devices: 1, memory: 1GiB, price: 0.05, count: 2}]
"""


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    file = tmp_path / "coral.yaml"
    file.write_text(CONFIG)
    return ["-c", str(file), "--set", f"state.folder={tmp_path / 'state'}"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main(["profile", *arguments, "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out) if out.out else out.err


def test_runs_are_kept_and_written(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "runs" / "tiny.json"
    code, runs = told(capsys, "run", *config, "--out", str(file))
    assert code == 0
    assert [(run["model"], run["device"], run["engine"]) for run in runs] == [("tiny", "local-box", "mock")]
    assert len(list((tmp_path / "state" / "measurements").glob("*.json"))) == 1
    (read,) = read_records([file])
    assert len(read.measurements.points) == len(runs[0]["measurements"]["points"])


def test_a_fit_finds_what_the_engine_costs(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tiny.json"
    assert told(capsys, "run", *config, "--out", str(file))[0] == 0
    code, (found,) = told(capsys, "fit", str(file), "--form", "affine")
    assert code == 0
    assert found["cost"]["layer_s"] == pytest.approx(0.0005, rel=1e-3)
    assert found["cost"]["token_s"] == pytest.approx(0.00001, rel=1e-3)
    assert found["cost"]["error"] < 1e-6
    assert told(capsys, "fit", str(file), "--model", "tiny")[0] == 0
    assert main(["profile", "fit", str(file), "--model", "other"]) == 2
    assert "no run of that model and device" in capsys.readouterr().err
    code, (knee,) = told(capsys, "fit", *config)
    assert code == 0
    assert knee["cost"]["base"]["error"] < 0.02


def test_runs_of_another_machine_are_planned_with(
    config: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.json"
    assert told(capsys, "run", *config, "--out", str(file))[0] == 0
    monkeypatch.setattr(MeasuringRun, "__call__", lambda *asked: None)  # no such device here
    there = [*config, "--set", "profiler.use=engine"]
    assert main(["profile", "show", *there]) == 1
    assert "engine 'mock' cannot be measured on 'local-box' here" in capsys.readouterr().err
    code, shown = told(capsys, "show", *there, "--set", f"profiler.files=[{file}]")
    assert code == 0
    (one,) = shown["believed"]
    assert (one["profiler"], one["provenance"], one["engine"]) == ("engine", "measured", "mock")


def test_a_check_reports_what_changed_since(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, (fine,) = told(capsys, "check", *config)
    assert code == 0
    assert fine["warnings"] == []
    assert max(fine["errors"].values()) < 1e-6
    # the profile is kept from before; the engine has become three times as slow
    slower = {"overhead_s": 0.003, "layer_s": 0.0015, "token_s": 0.00003, "attend_s": 0.0000003}
    before = MeasuringRun.path

    def same_file(run: MeasuringRun, *asked: Any) -> Path:
        run.options = {}
        return before(run, *asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MeasuringRun, "path", same_file)
        assert told(capsys, "run", *config)[0] == 0
        code, (off,) = told(capsys, "check", *config, "--set", f"engine.cost={json.dumps(slower)}")
    assert code == 1
    assert off["errors"]["decode"] == pytest.approx(2 / 3, abs=0.01)
    assert "above the limit" in off["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run", "--model", "tinny"], 2, "did you mean 'tiny'"),
        (["show", "--gpu", "local-bos"], 2, "did you mean 'local-box'"),
    ],
)
def test_what_is_not_there(
    config: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    assert main(["profile", *arguments, *config]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("nothing", "holds no measuring runs"),
        ('{"format": 99, "runs": []}', "has format 99"),
        ('{"format": 1, "runs": [{"model": "x"}]}', "holds no measuring runs"),
    ],
)
def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, text: str) -> None:
    file = tmp_path / "runs.json"
    file.write_text(content)
    assert main(["profile", "fit", str(file)]) == 1
    error = capsys.readouterr().err
    assert text in error
    assert str(file) in error


def test_a_solver_of_linear_programs_fits_no_knee(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "fit", *config, "--solver", "highs"]) == 2
    assert "linear programs only" in capsys.readouterr().err


def test_a_gpu_that_is_not_here_is_said(
    config: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeasuringRun, "again", lambda *asked, **how: None)
    assert main(["profile", "run", *config]) == 1
    assert "can be measured here" in capsys.readouterr().err
