"""Malformed messages and raw bytes at a system that serves: it goes on serving."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fuzz import peer, sockets, system


def test_nothing_that_a_peer_or_a_stranger_sends_stops_the_system(tmp_path: Path) -> None:
    with system(tmp_path) as one:
        for said in (peer(one, 4_000, seed=3), sockets(one, 60, seed=4)):
            assert said["crashes"] == 0, one.log()
            assert said["wrong_answers"] == 0
            assert said["answers"] > 0
            assert said["growth"] < 1.2
        assert one.stop() == 0
        one.wait_gone(30)
