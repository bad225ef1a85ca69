"""Figures as files: matplotlib without its global state, and the same bytes for the same figure."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from coral.errors import PluginError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Told apart also by the colour-blind (Okabe and Ito)."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches. Raises PluginError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PluginError(
            "figures are drawn with matplotlib, which is not installed",
            mend='pip install "coral-llm[report]"',
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def format_of(name: str) -> str:
    """The format of a file by its ending. Raises UsageError for one that cannot be drawn."""
    ending = name.rpartition(".")[2].lower()
    if ending not in FORMATS:
        raise UsageError(
            f"cannot tell what to draw into {name!r}",
            mend=f"give a name that ends in {', '.join(f'.{one}' for one in FORMATS)}",
        )
    return ending


def drawn(figure: Figure, kind: str) -> bytes:
    """The figure in one of `FORMATS`."""
    import matplotlib

    out = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "coral", "svg.fonttype": "none"}):
        figure.savefig(out, format=kind, dpi=150, metadata=metadata)
    return out.getvalue()
