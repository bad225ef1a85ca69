"""Measuring runs are real processes, their results are kept, their failures are told."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from coral.core.profile import measure
from coral.core.profile.analytic import build
from coral.core.profile.measure import MeasuringRun
from coral.core.profile.options import AnalyticOptions
from coral.errors import ProfileError
from coral.hookspecs.engine import EngineCapabilities, Launch
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import AffineStepCost
from tests.core.profile.test_fit import TRUE, measured
from tests.core.profile.test_step_costs import DENSE

CPU = Gpu(name="cpu-a", kind="cpu", memory_bytes=1 << 30, memory_bytes_per_s=0, flops={}, threads=1)
OTHER = msgspec.structs.replace(CPU, name="cpu-b", memory_bytes=1 << 29)


class Script:
    """An engine whose measuring run is a line of Python; it notes in a file that it ran."""

    def __init__(self, folder: Path, code: str, version: str = "1") -> None:
        self.runs = folder / "runs"
        self.code = f"open({str(self.runs)!r}, 'a').write('x'); {code}"
        self.version = version

    def capabilities(self, shape: ModelShape, gpu: Gpu) -> EngineCapabilities:
        return EngineCapabilities(
            version=self.version, block_size=16, dtypes=(), max_step_tokens=1, max_step_requests=1
        )

    def launch(self, worker_argv: object, *, threads: int, devices: object) -> Launch:
        raise AssertionError("not a worker")

    def measure(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Launch | None:
        return Launch(argv=(sys.executable, "-c", self.code))

    @property
    def count(self) -> int:
        return len(self.runs.read_text()) if self.runs.exists() else 0


def printing(folder: Path, version: str = "1") -> Script:
    text = msgspec.json.encode(measured()).decode()
    return Script(folder, f"print({text!r})", version)


def test_a_result_is_kept_and_shared_by_like_devices(tmp_path: Path) -> None:
    engine = printing(tmp_path)
    run = MeasuringRun(engine, "e", tmp_path)
    assert run(DENSE, CPU, "float32") == measured()
    assert run(DENSE, CPU, "float32") == measured()
    assert MeasuringRun(engine, "e", tmp_path)(DENSE, OTHER, "float32") == measured()
    assert engine.count == 1


def test_it_runs_in_the_engines_own_environment(tmp_path: Path) -> None:
    """`engine.python` is the interpreter of the measuring run too, and its results are kept apart."""
    own = tmp_path / "python"
    own.write_text(f'#!/bin/sh\necho x >> {tmp_path}/used\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    engine = printing(tmp_path)
    assert MeasuringRun(engine, "e", tmp_path)(DENSE, CPU, "float32") == measured()
    assert MeasuringRun(engine, "e", tmp_path, python=str(own))(DENSE, CPU, "float32") == measured()
    assert (tmp_path / "used").read_text() == "x\n"
    assert engine.count == 2


@pytest.mark.parametrize("change", ["shape", "dtype", "threads", "version", "options", "cpu"])
def test_a_change_is_measured_anew(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = printing(tmp_path)
    before = MeasuringRun(engine, "e", tmp_path).path(DENSE, CPU, "float32")
    shape, gpu, dtype, options = DENSE, CPU, "float32", {}
    match change:
        case "shape":
            shape = msgspec.structs.replace(DENSE, layers=7)
        case "dtype":
            dtype = "bfloat16"
        case "threads":
            gpu = msgspec.structs.replace(CPU, threads=2)
        case "version":
            engine.version = "2"
        case "options":
            options = {"block_size": 32}
        case _:
            monkeypatch.setattr(measure, "cpu_model", lambda: "another")
    assert MeasuringRun(engine, "e", tmp_path, options=options).path(shape, gpu, dtype) != before


def test_a_failing_run_is_told_with_its_last_words(tmp_path: Path) -> None:
    run = MeasuringRun(Script(tmp_path, "raise SystemExit('no room at the inn')"), "e", tmp_path)
    with pytest.raises(ProfileError, match=r"status 1:\nno room at the inn"):
        run(DENSE, CPU, "float32")
    assert not (tmp_path / "measurements").exists()


def test_a_run_that_hangs_is_ended(tmp_path: Path) -> None:
    engine = Script(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(ProfileError, match=r"did not end within 1 s"):
        MeasuringRun(engine, "e", tmp_path, deadline_s=1.0)(DENSE, CPU, "float32")


def test_what_is_not_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="printed no Measurements"):
        MeasuringRun(Script(tmp_path, "print('hello')"), "e", tmp_path)(DENSE, CPU, "float32")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = MeasuringRun(printing(tmp_path), "e", tmp_path)
    run(DENSE, CPU, "float32")
    path = run.path(DENSE, CPU, "float32")
    path.write_text("{")
    with pytest.raises(ProfileError, match=path.name):
        run(DENSE, CPU, "float32")


def test_the_analytic_profiler_measures_cpu_devices(tmp_path: Path) -> None:
    run = MeasuringRun(printing(tmp_path), "e", tmp_path)
    cost = build(AnalyticOptions()).step_cost(DENSE, CPU, "e", dtype="float32", measure=run)
    assert isinstance(cost, AffineStepCost)
    assert cost.provenance == "measured"
    assert cost.head_s == pytest.approx(TRUE.head_s, rel=1e-6)


def test_a_cpu_device_that_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ProfileError, match="'cpu-a'"):
        build(AnalyticOptions()).step_cost(DENSE, CPU, "e", dtype="float32", measure=None)
