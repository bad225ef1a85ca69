"""What a long-running command shows: a live line with a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console

if TYPE_CHECKING:
    from coral.core.serve.coordinator.journal import Entry
    from coral.core.serve.coordinator.preparation import TemplateProgress

PLAIN_EVERY_S = 5.0


class Display:
    """Writes to standard error, so that standard output stays for results.

    Where that takes nothing (a pipe or terminal that is gone, a full disk) what is shown is lost, and
    nothing else: the work does not depend on who watches it.
    """

    def __init__(self) -> None:
        self._console = _console()
        self._live = self._console.status("starting") if self._console.is_terminal else None
        self._started = time.monotonic()
        self._next_plain = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self._whatever_shows():
                self._live.stop()

    def entry(self, entry: Entry) -> None:
        """A line of the journal."""
        style = "yellow" if entry.fault else "default"
        seconds = time.monotonic() - self._started
        with self._whatever_shows():
            self._console.print(f"{seconds:7.1f}s  {entry.topic:<9} ", style="dim", end="", markup=False)
            self._console.print(entry.text, style=style, markup=False)
            if self._live is not None:
                self._live.update(f"{entry.topic}: {entry.text.splitlines()[0][:100]}")

    def templates(self, progress: TemplateProgress) -> None:
        """Progress of the template library."""
        share = f"{progress.done / progress.total:.0%} " if progress.total else ""
        text = f"templates: {share}{progress.what}"
        if self._live is None and time.monotonic() < self._next_plain:
            return
        with self._whatever_shows():
            if self._live is not None:
                self._live.update(text)
            else:
                now = time.monotonic()
                self._next_plain = now + PLAIN_EVERY_S
                self._console.print(f"{now - self._started:7.1f}s  {text}", markup=False)

    def settled(self, text: str) -> None:
        """Nothing is going on but serving."""
        if self._live is not None:
            with self._whatever_shows():
                self._live.update(text)

    @contextmanager
    def _whatever_shows(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._console = _console()  # the old one would keep the text, and try it again with what follows


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich's own ends the process


def _console() -> Console:
    return _Console(stderr=True, highlight=False, soft_wrap=True)
