"""Those of one model that wait at the coordinator, in order."""

from __future__ import annotations

from collections.abc import Iterator

from coral.core.serve.coordinator.requests.flight import Flight


class Line:
    """`handing`: whose prefill leg runs, and that want a decode instance. `returned`: who have been at an
    instance and start from the prompt again; they come before `new`, who have not been anywhere. `full`:
    whoever stood first, of those that could go somewhere, found all instances full.
    """

    __slots__ = ("full", "handing", "new", "returned")

    def __init__(self) -> None:
        self.full = False
        self.handing: dict[str, Flight] = {}
        self.returned: dict[str, Flight] = {}
        self.new: dict[str, Flight] = {}

    def __len__(self) -> int:
        """Those that wait for a first leg."""
        return len(self.returned) + len(self.new)

    def __bool__(self) -> bool:
        return bool(self.returned or self.new or self.handing)

    def starting(self) -> Iterator[Flight]:
        """Those that wait for a first leg, as they are now, in order."""
        yield from [*self.returned.values(), *self.new.values()]

    def leave(self, flight: Flight) -> None:
        for part in (self.handing, self.returned, self.new):
            part.pop(flight.id, None)

    def __contains__(self, flight: Flight) -> bool:
        return any(flight.id in part for part in (self.handing, self.returned, self.new))
