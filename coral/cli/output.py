"""How commands print: JSON for programs, tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import typer

WIDE = 10_000
SHORT = 9
"""A cell of so many characters is not broken."""


def print_json(value: Any) -> None:
    """Any plain data, Struct, or mix of both."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def figure(value: float) -> str:
    """Four digits, or all before the point, no exponent; less than a thousandth is said to be."""
    if 0 < abs(value) < 1e-3:
        return "<0.001" if value > 0 else ">-0.001"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output; not wider than the terminal, and whole where there is none. Nothing is cut
    off: long cells go on in the next line, and figures stay in one."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    cells = [[str(cell) for cell in row] for row in rows]
    for place, name in enumerate(columns):
        longest = max((len(line) for row in cells for line in row[place].split("\n")), default=0)
        least = longest if longest <= SHORT else None
        table.add_column(name, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    if Measurement.get(console, console.options.update(max_width=WIDE), table).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    least = Measurement.get(console, console.options, table).minimum
    console.print(table, width=max(console.width, least), crop=False)
