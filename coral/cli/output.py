"""How commands print: JSON for programs, tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import typer


def print_json(value: Any) -> None:
    """Any plain data, Struct, or mix of both."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output; not wider than the terminal, and whole where there is none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console()
    console.print(table) if console.is_terminal else Console(width=200).print(table)
