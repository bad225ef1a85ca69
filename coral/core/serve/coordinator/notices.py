"""Announced ends of machines: the clouds are asked for them every few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.machines import Machines
from coral.errors import CoralError
from coral.hookspecs.cloud import Cloud

EVERY_S = 5.0
ANSWER_S = 20.0


class Notices:
    """A cloud that does not answer says nothing, once; the others are asked all the same."""

    def __init__(
        self,
        clouds: Sequence[Cloud],
        machines: Machines,
        journal: Journal,
        replan: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._clouds = clouds
        self._machines = machines
        self._journal = journal
        self._replan = replan
        self._every_s = every_s
        self._silent: set[int] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        for number, cloud in enumerate(self._clouds):
            try:
                async with asyncio.timeout(ANSWER_S):
                    notices = await cloud.notices()
            except Exception as error:  # a cloud is anyone's; without notice a machine's end is noticed later
                if number not in self._silent:
                    words = (
                        error.message if isinstance(error, CoralError) else f"{type(error).__name__}: {error}"
                    )
                    self._journal.say("machine", f"a cloud tells no notices: {words}", fault=True)
                self._silent.add(number)
                continue
            self._silent.discard(number)
            for notice in notices:
                if notice.kind == "lost":
                    self._machines.lost(notice.machine_id, "its cloud has taken it")
                elif self._machines.under_notice(notice.machine_id, notice.seconds_left):
                    text = f"{notice.machine_id} ends in {notice.seconds_left:.0f} s ({notice.kind})"
                    self._journal.say("machine", text, fault=True)
                    self._replan(text)
