"""Builders that are killed, builders side by side, what a store forgets, and step costs that are no times."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from coral.core.generate import build as building
from coral.core.generate import search as searching
from coral.core.generate.library import open_library
from coral.core.generate.store import DAY_NS, forget_old
from coral.errors import LibraryError, ProfileError
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelSpec
from coral.types.step import AffineStepCost, StepWork
from tests.core.generate import build_case
from tests.core.generate import library_case as case

ROOT = Path(__file__).resolve().parents[3]
SOON_S = 120.0


def builder(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.core.generate.build_case", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("stop", ["solving", "writing"])
def test_a_build_that_was_killed_goes_on_where_it_was(tmp_path: Path, stop: str) -> None:
    folder = tmp_path / "killed"
    process = builder(folder, stop)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
    finally:
        process.kill()
        process.communicate(timeout=SOON_S)
    with pytest.raises(LibraryError, match="no template library"):
        open_library(folder)
    left = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert sum(name.endswith(".json") for name in left) == 1
    half_written = [name for name in left if name.startswith(".")]
    assert len(half_written) == (stop == "writing")

    case.build(folder, *build_case.MODELS)
    after = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert left.items() <= after.items(), "what was there is not written again"
    case.build(tmp_path / "whole", *build_case.MODELS)
    assert files(folder) == files(tmp_path / "whole")


def test_builders_side_by_side_make_one_library(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    processes = [builder(folder), builder(folder)]
    for process in processes:
        process.communicate(timeout=SOON_S)
        assert process.returncode == 0
    case.build(tmp_path / "alone", *build_case.MODELS)
    assert files(folder) == files(tmp_path / "alone")
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_store_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    store = tmp_path / "store"

    def built(name: str, decode_s: float) -> str:
        model = case.model(decode_s=decode_s)
        library = case.build(tmp_path / name, model, store=store)
        return library.entry("m", "mixed").hash

    first, second = built("first", 0.2), built("second", 0.3)
    _aged(store, second, 10)
    _aged(store, first, 20)
    assert built("first", 0.2) == first  # used again, not written
    library = case.build(tmp_path / "third", case.model(decode_s=0.4), store=store)
    third = library.entry("m", "mixed").hash
    forget_old(store, [library.entry("m", "mixed")], most=2)
    assert {path.stem for path in store.glob("*.json")} == {first, third}
    assert {path.stem for path in store.glob("*.parquet")} == {first, third}
    forget_old(store, [library.entry("m", "mixed")], most=0)
    assert {path.stem for path in store.iterdir()} == {third}


def test_what_killed_builders_left_goes_after_a_day(tmp_path: Path) -> None:
    case.build(tmp_path)
    old, young = tmp_path / ".x.parquet.old", tmp_path / ".x.parquet.young"
    for path, days in ((old, 2), (young, 0)):
        path.write_bytes(b"half")
        at = path.stat().st_mtime_ns - days * DAY_NS
        os.utime(path, ns=(at, at))
    case.build(tmp_path)
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_a_step_cost_that_is_no_time_is_told_and_nothing_is_written(tmp_path: Path, wrong: float) -> None:
    """Of the second model: the first is sound, and not solved for nothing."""

    class Broken(AffineStepCost, frozen=True, kw_only=True):
        def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
            return wrong

    def costs(model: ModelSpec, gpu: Gpu) -> StepCost:
        sound = case.cost(model, gpu)
        assert isinstance(sound, AffineStepCost)
        if model.name == "a" or gpu.name == "small":
            return sound
        return Broken(**{name: getattr(sound, name) for name in sound.__struct_fields__})

    with pytest.raises(ProfileError, match="not finite"):
        case.build(tmp_path / "new", case.model("a"), case.model("b"), costs=costs)
    assert not (tmp_path / "new").exists()


def test_progress_is_told_by_the_piece_also_from_an_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "WORTH_SHARING", 0)
    monkeypatch.setattr(searching, "PIECE", 2)  # many pieces end at once: none is taken twice, or too early
    told: list[tuple[float, float, str]] = []
    with ThreadPoolExecutor(2) as pool:
        library = case.build(tmp_path, executor=pool, progress=lambda *report: told.append(report))
    combinations = library.entry("m", "mixed").combinations
    solved = [report for report in told if report[1]]
    assert len(solved) >= combinations / 2
    done = [report[0] for report in solved]
    assert done == sorted(done)
    assert done[-1] == combinations
    whole = case.build(tmp_path / "whole")
    assert np.array_equal(whole.table("m", "mixed").throughput, library.table("m", "mixed").throughput)


def _aged(store: Path, digest: str, seconds: int) -> None:
    path = store / f"{digest}.json"
    at = path.stat().st_mtime_ns - seconds * 10**9
    os.utime(path, ns=(at, at))
