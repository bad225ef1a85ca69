"""Which signals end `coral serve`, whatever it has inherited from the shell that started it."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from coral.cli.serve import _stop_on_signals
from coral.core.serve.coordinator.service import Stopping


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_an_ignored_signal_that_was_inherited(number: signal.Signals, ends: bool) -> None:
    async def serve() -> bool:
        stopping = Stopping()
        _stop_on_signals(stopping)
        os.kill(os.getpid(), number)
        try:
            await asyncio.wait_for(stopping.asked.wait(), 0.5)
        except TimeoutError:
            return False
        return True

    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert asyncio.run(serve()) is ends
    finally:
        signal.signal(number, before)
