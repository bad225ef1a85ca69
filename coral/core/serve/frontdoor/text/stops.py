"""Stop strings: the text is cut before the first, also where it spans tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, holding back a tail that may yet become a stop string."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string has been met (then nothing follows).

        Of several stop strings the one that begins first wins.
        """
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        shown = len(text) - keep
        self._held = text[shown:]
        return text[:shown], False

    def end(self) -> str:
        """The tail that did not become a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop` (and not all of it)."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
