"""Tables for people: nothing is cut off, whatever the width."""

from __future__ import annotations

import pytest

from coral.cli.output import figure, print_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (11550.0, "11,550"),
        (12058.6, "12,059"),
        (999.96, "1,000"),
        (608.27, "608.3"),
        (0.375, "0.375"),
        (0.0, "0"),
        (4.3e-5, "<0.001"),
        (-4.3e-5, ">-0.001"),
    ],
)
def test_a_figure_has_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_terminal_shows_every_character(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("TERM", "dumb")
    rows = [
        ("a-model-with-a-long-name", "cloud/region-of-a-long-name", figure(x), "tokens/s")
        for x in (11550.0, 2.5)
    ]
    print_table(("model", "domain", "throughput", "unit"), rows)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "11,550" in shown
    parts = [line.split("  ")[0].strip() for line in shown.splitlines()]
    assert "a-model-with-a-long-name" in shown or "a-model-with-a-long-name" in "".join(parts)
