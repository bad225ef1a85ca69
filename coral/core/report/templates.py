"""The templates of a model in one figure: what throughput costs, and how much a dollar buys.

Left, for each phase: price against throughput of every template, and the Pareto front: templates that no
other beats in both. Right: the share of templates that give at most so much throughput per USD/h (the
paper's Fig. 1b), of single nodes, of templates of one GPU model, and of those that mix models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coral.core.report.figure import COLOURS, new_figure
from coral.hookspecs.planner import TemplateTable
from coral.types.model import Phase
from coral.types.program import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS: Mapping[Phase, str] = {
    "prefill": "prompt tokens/s",
    "decode": "output tokens/s",
    "mixed": "requests/s",
}
MOST_DOTS = 20_000
FEW_DOTS = 50
MOST_STEPS = 2_000


class PricedTemplates(Struct, frozen=True, kw_only=True, eq=False):
    """`price_usd_h[i]` of row i of the table; NaN where it is not on offer."""

    table: TemplateTable
    price_usd_h: Floats

    @property
    def rows(self) -> Ints:
        """Those that have a price above 0: a ratio needs one."""
        return np.flatnonzero(self.price_usd_h > 0)

    @property
    def families(self) -> dict[str, NDArray[np.bool_]]:
        gpus = sorted({kind.gpu for kind in self.table.node_types})
        of = np.array([gpus.index(kind.gpu) for kind in self.table.node_types], np.int64)
        models = np.stack([self.table.usage[:, of == g].any(axis=1) for g in range(len(gpus))], axis=1)
        nodes, kinds = self.table.usage.sum(axis=1), models.sum(axis=1)
        return {
            "one node": nodes == 1,
            "several nodes of one GPU model": (nodes > 1) & (kinds == 1),
            "several GPU models": kinds > 1,
        }


def pareto(price: Floats, throughput: Floats) -> Ints:
    """Indices, by rising price, of those that no other beats or equals in both."""
    order = np.lexsort((-throughput, price))
    best = np.maximum.accumulate(np.concatenate([[0.0], throughput[order]]))[:-1]
    front: Ints = order[throughput[order] > best]
    return front


def templates_figure(model: str, phases: Mapping[Phase, PricedTemplates]) -> Figure:
    """One row of panels for each phase. Raises PluginError where matplotlib is not installed."""
    figure = new_figure(11.0, 0.6 + 4.2 * len(phases))
    axes = figure.subplots(len(phases), 2, squeeze=False)
    figure.suptitle(f"Serving templates of {model}")
    for (left, right), (phase, priced) in zip(axes, phases.items(), strict=True):
        _front(left, phase, priced)
        _distribution(right, phase, priced)
    return figure


def _front(axes: Axes, phase: Phase, priced: PricedTemplates) -> None:
    rows = priced.rows
    price, throughput = priced.price_usd_h[rows], priced.table.throughput[rows]
    every = max(1, -(-len(rows) // MOST_DOTS))
    families = list(zip(priced.families.items(), COLOURS, strict=False))
    for (_, inside), colour in reversed(families):  # the few on top of the many
        dots = np.flatnonzero(inside[rows])
        few = len(dots) < FEW_DOTS
        dots = dots if few else dots[::every]
        axes.scatter(
            price[dots],
            throughput[dots],
            s=16 if few else 5,
            alpha=0.9 if few else 0.35,
            linewidths=0,
            color=colour,
            rasterized=True,
        )
    for (name, _), colour in families:
        axes.scatter([], [], s=18, color=colour, label=name)
    front = pareto(price, throughput)
    axes.step(price[front], throughput[front], where="post", color="black", linewidth=1, label="Pareto front")
    axes.plot(price[front], throughput[front], "o", color="black", markersize=2.5)
    axes.set_title(f"{phase}: {len(rows):,} templates, {len(front)} of them on the front", fontsize=10)
    axes.set_xlabel("USD/h")
    axes.set_ylabel(UNITS[phase])
    _logarithmic(axes)
    axes.grid(True, which="major", alpha=0.25)
    axes.legend(fontsize=8, loc="upper left")  # where much throughput would be cheap


def _distribution(axes: Axes, phase: Phase, priced: PricedTemplates) -> None:
    rows = priced.rows
    value = priced.table.throughput[rows] / priced.price_usd_h[rows]
    for (name, inside), colour in zip(priced.families.items(), COLOURS, strict=False):
        of = np.sort(value[inside[rows]])
        if len(of):
            label = f"{name} ({len(of):,}; best {of[-1]:,.4g})"
            keep = np.unique(np.linspace(0, len(of) - 1, min(len(of), MOST_STEPS)).astype(np.int64))
            share = np.concatenate([[0.0], (keep + 1) / len(of)])
            axes.step(np.concatenate([of[:1], of[keep]]), share, where="post", color=colour, label=label)
    axes.set_title(f"{phase}: what a dollar buys", fontsize=10)
    axes.set_xlabel(f"{UNITS[phase]} per USD/h")
    axes.set_ylabel("share of templates with at most that")
    axes.set_ylim(0, 1.02)
    axes.grid(True, alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")


def _logarithmic(axes: Axes) -> None:
    """Log scales with plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
