"""What is shown is lost where nobody can read it, and nothing else is."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from coral.cli.display import Display
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.preparation import TemplateProgress


class Gone(StringIO):
    """A pipe whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Terminal(StringIO):
    """One that can be closed."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_reader_that_is_gone_stops_nothing_and_gets_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    journal = Journal()
    with Display() as display:
        journal.listen(display.entry)
        journal.say("plan", "one")
        display.templates(TemplateProgress(done=1, total=2, what="two"))
        back = StringIO()
        monkeypatch.setattr(sys, "stderr", back)
        journal.say("plan", "three")
    assert [entry.text for entry in journal.entries] == ["one", "three"]
    assert "three" in back.getvalue()
    assert "one" not in back.getvalue()


def test_a_terminal_that_is_closed_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    journal = Journal()
    with Display() as display:
        journal.listen(display.entry)
        journal.say("plan", "one")
        terminal.gone = True
        journal.say("plan", "two")
        display.settled("three")
    assert "one" in terminal.getvalue()
