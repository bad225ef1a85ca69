"""The figure of a model's templates says what the table says."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from coral.core.report.figure import drawn, format_of, new_figure
from coral.core.report.templates import MOST_DOTS, PricedTemplates, pareto, templates_figure
from coral.errors import PluginError, UsageError
from coral.hookspecs.planner import TemplateTable, node_types_of


def priced(rows: int = 400, seed: int = 0) -> PricedTemplates:
    rng = np.random.default_rng(seed)
    usage = rng.integers(0, 3, (rows, 3)).astype(np.int16)
    usage[usage.sum(axis=1) == 0, 0] = 1
    usage[0], usage[1], usage[2] = (1, 0, 0), (2, 1, 0), (0, 0, 1)
    price = usage @ np.array([1.0, 1.9, 3.0])
    price[3] = np.nan
    table = TemplateTable(
        node_types=node_types_of(["A x1", "A x2", "B x1"]),
        usage=usage,
        throughput=price * rng.uniform(50, 200, rows),
        irreducible=np.ones(rows, np.bool_),
    )
    table.throughput[3] = 10.0
    return PricedTemplates(table=table, price_usd_h=price)


def test_the_front_is_what_no_other_beats() -> None:
    rng = np.random.default_rng(1)
    price, throughput = rng.integers(1, 12, 200).astype(float), rng.integers(1, 12, 200).astype(float)
    front = pareto(price, throughput)
    assert (np.diff(price[front]) > 0).all()
    assert (np.diff(throughput[front]) > 0).all()
    for i in range(200):
        beaten = ((price <= price[i]) & (throughput >= throughput[i])).sum() > (
            (price == price[i]) & (throughput == throughput[i])
        ).sum()
        on = ((price[front] == price[i]) & (throughput[front] == throughput[i])).any()
        assert on == (not beaten)


def test_families_tell_nodes_and_gpu_models_apart() -> None:
    one = priced()
    alone, same, mixed = one.families.values()
    assert alone[0]
    assert same[1]
    assert alone[2]
    gpus = (one.table.usage[:, :2].any(axis=1)).astype(int) + (one.table.usage[:, 2] > 0)
    assert np.array_equal(mixed, gpus == 2)
    assert (alone.astype(int) + same + mixed == 1).all()
    assert 3 not in one.rows


def test_panels_show_the_table() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    one = priced()
    figure = templates_figure("some-model", {"prefill": one, "decode": priced(seed=2)})
    assert len(figure.axes) == 4
    left, right = figure.axes[:2]
    front = pareto(one.price_usd_h[one.rows], one.table.throughput[one.rows])
    (step,) = (line for line in left.lines if line.get_label() == "Pareto front")
    assert np.array_equal(step.get_xdata(), one.price_usd_h[one.rows][front])
    assert np.array_equal(step.get_ydata(), one.table.throughput[one.rows][front])
    dots = sum(len(np.asarray(cloud.get_offsets())) for cloud in left.collections)
    assert dots == len(one.rows)
    value = one.table.throughput[one.rows] / one.price_usd_h[one.rows]
    assert [np.asarray(line.get_xdata())[-1] for line in right.lines] == [
        pytest.approx(value[inside[one.rows]].max()) for inside in one.families.values()
    ]
    assert all(np.asarray(line.get_ydata())[[0, -1]].tolist() == [0, 1] for line in right.lines)


def test_a_cloud_of_dots_is_thinned() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figure = templates_figure("m", {"mixed": priced(rows=3 * MOST_DOTS)})
    assert sum(len(np.asarray(cloud.get_offsets())) for cloud in figure.axes[0].collections) < 1.1 * MOST_DOTS


def test_files_are_what_their_names_say_and_always_the_same() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    phases = {"mixed": priced()}
    png, svg = (drawn(templates_figure("m", phases), kind) for kind in ("png", "svg"))  # type: ignore[arg-type]
    assert png.startswith(b"\x89PNG")
    assert xml.fromstring(svg).tag.endswith("svg")
    assert "requests/s per USD/h" in svg.decode()
    assert drawn(templates_figure("m", phases), "svg") == svg  # type: ignore[arg-type]


def test_names_without_a_format_are_told() -> None:
    assert format_of("a.b.SVG") == "svg"
    with pytest.raises(UsageError, match=r"'figure.gif'") as caught:
        format_of("figure.gif")
    assert ".png" in str(caught.value.mend)


def test_without_matplotlib_the_mend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PluginError, match="not installed") as caught:
        new_figure(1, 1)
    assert "coral-llm[report]" in str(caught.value.mend)
