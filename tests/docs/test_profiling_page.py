"""docs/profiling.md names every profiler, and states the errors that step costs state."""

from __future__ import annotations

import re
from pathlib import Path

from coral_profiler_aiconfigurator.systems import ERRORS, SYSTEMS

from coral.core.plugins import load_plugins
from coral.core.profile import catalogue
from coral.core.profile.calibration import CLASSES

PAGE = (Path(__file__).parents[2] / "docs" / "profiling.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| ([\d.]+) % \| (?:([\d.]+) %|–) \|$", re.MULTILINE)


def test_every_profiler_is_named() -> None:
    for name in load_plugins().of_kind("profiler"):
        assert f"| `{name}` |" in PAGE


def test_stated_errors_are_those_of_the_code() -> None:
    rows = ROW.findall(PAGE)
    named = {gpu: (analytic, kernels) for names, analytic, kernels in rows for gpu in names.split(", ")}
    unknown = named.pop("a GPU of no known class")
    assert float(unknown[0]) == 100 * CLASSES["unknown"].error
    assert set(SYSTEMS) <= set(named)
    for gpu, (analytic, kernels) in named.items():
        assert float(analytic) == round(100 * CLASSES[catalogue.gpu_class(gpu)].error, 6), gpu
        assert (float(kernels) / 100 if kernels else None) == ERRORS.get(SYSTEMS.get(gpu, "")), gpu
