"""Curves and surfaces never fall, and keep what was monotone already."""

from __future__ import annotations

import numpy as np
import pytest
from coral_profiler_aiconfigurator.monotone import Curve, Surface, below

NODES = np.array([1.0, 2.0, 4.0, 8.0])


def test_what_is_monotone_stays() -> None:
    rising = np.array([1.0, 2.0, 2.0, 5.0])
    assert below(rising, 0).tolist() == rising.tolist()


def test_more_work_bounds_less() -> None:
    assert below(np.array([1.0, 3.0, 2.0, 5.0]), 0).tolist() == [1.0, 2.0, 2.0, 5.0]


def test_a_curve_between_below_and_beyond_its_nodes() -> None:
    curve = Curve.through(NODES, np.array([1.0, 2.0, 4.0, 6.0]))
    assert curve(3.0) == pytest.approx(3.0)
    assert curve(0.5) == pytest.approx(1.0)
    assert curve(24.0) == pytest.approx(18.0)
    assert curve(np.array([[1.0], [6.0]])).tolist() == [[1.0], [5.0]]


def test_a_surface_between_and_beyond_its_nodes() -> None:
    attended = np.array([1.0, 10.0, 100.0])
    surface = Surface.through(NODES, attended, NODES[:, None] + attended)
    assert surface(2.0, 10.0) == pytest.approx(12.0)
    assert surface(3.0, 55.0) == pytest.approx(58.0)
    assert surface(0.0, 50.0) == 0.0
    assert surface(0.5, 10.0) == pytest.approx(11.0 / 2)
    assert surface(16.0, 20.0) == pytest.approx(2 * surface(8.0, 10.0))
    assert surface(8.0, 400.0) == pytest.approx(4 * surface(8.0, 100.0))


def test_what_falls_is_taken_from_below() -> None:
    """One long row takes longer than four short ones of the same context."""
    seconds = np.array([[9.0, 9], [5, 6], [5, 7], [6, 8]])
    surface = Surface.through(NODES, np.array([1.0, 2.0]), seconds)
    assert surface.seconds[1:, 1:].tolist() == [[5, 6], [5, 6], [5, 7], [6, 8]]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_falls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    surface = Surface.through(NODES, np.array([1.0, 4.0, 32.0]), rng.uniform(1, 9, (4, 3)))
    rows, attended = np.meshgrid(np.linspace(0, 8, 17), np.linspace(0, 90, 91), indexing="ij")
    seconds = surface(rows, attended)
    assert np.diff(seconds, axis=1).min() >= -1e-12
    assert np.diff(seconds, axis=0).min() >= -1e-12
    curve = Curve.through(NODES, rng.uniform(1, 9, 4))
    assert np.diff(curve(np.linspace(0, 30, 200))).min() >= -1e-12
