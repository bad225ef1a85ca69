"""A package that `coral plugins new` writes is installed, found, used, and passes its own tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coral.cli.main import main
from coral.core.plugins import KINDS

ROOT = Path(__file__).resolve().parents[2]
SABOTAGE = {
    "router": ("coral_router_my_policy/router.py", "return min(among, key=self._load)", "return among[0]"),
    "solver": ("coral_solver_my_policy/solver.py", 'status = "feasible"', 'status = "optimal"'),
    "engine": ("coral_engine_my_policy/layers.py", "row + attended", "row"),
    "planner": ("coral_planner_my_policy/stock.py", "obtainable=offer.obtainable", "obtainable=99"),
    "cloud": ("coral_cloud_my_policy/cloud.py", "if note.machine.id == order.id:", "if False:"),
    "workload": ("coral_workload_my_policy/workload.py", "random.Random(seed)", "random.Random()"),
    "profiler": ("coral_profiler_my_policy/profiler.py", "token_s=2 * used", "token_s=-2 * used"),
    "executor": ("coral_executor_my_policy/executor.py", "return ThreadPool", "return 0 and ThreadPool"),
}
"""Per kind a change that breaks the contract: a suite that still passes would hold nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that stands for site-packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def written(kind: str, folder: Path) -> Path:
    package = folder / f"coral-{kind}-my-policy"
    assert main(["plugins", "new", kind, "my-policy", "--into", str(package)]) == 0
    return package


def own_tests(package: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_package_is_installed_found_and_passes_its_tests(tmp_path: Path, site: Path) -> None:
    package = written("router", tmp_path)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    subprocess.run(
        [*pip, "--no-build-isolation", "--no-index", "--target", str(site), str(package)],
        check=True,
        timeout=200,
    )
    ran = own_tests(package, site)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    code = (
        "from coral.core.plugins import load_plugins; r = load_plugins();"
        "print(type(r.build('router', 'my-policy', {'waiting_weight': 3})).__name__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "MyPolicy"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "router"])
def test_a_package_of_every_kind_passes_its_tests(kind: str, tmp_path: Path) -> None:
    package = written(kind, tmp_path)
    ran = own_tests(package, package)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_package_of_every_kind_fails_its_tests(kind: str, tmp_path: Path) -> None:
    package = written(kind, tmp_path)
    path, good, bad = SABOTAGE[kind]
    text = (package / path).read_text()
    assert good in text
    (package / path).write_text(text.replace(good, bad))
    ran = own_tests(package, package)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert " failed" in ran.stdout or " error" in ran.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_clean(kind: str, tmp_path: Path) -> None:
    package = written(kind, tmp_path)
    settings = ["--config", str(ROOT / "pyproject.toml"), "--config", f'src=["{package}"]']
    for command in (["check"], ["format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "-q", "--no-cache", *settings, str(package)],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_entry_point_names_the_package(tmp_path: Path) -> None:
    import tomllib

    project = tomllib.loads((written("cloud", tmp_path) / "pyproject.toml").read_text())["project"]
    assert project["name"] == "coral-cloud-my-policy"
    assert project["entry-points"]["coral"] == {"cloud-my-policy": "coral_cloud_my_policy"}
    assert json.dumps(project["dependencies"]) == '["coral-llm[config]"]'
