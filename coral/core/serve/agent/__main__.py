"""`python -m coral.core.serve.agent`: started by a cloud on a machine, by no person."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from coral.core.serve.agent.agent import Agent


def main() -> int:
    parser = argparse.ArgumentParser(prog="coral agent", description="Runs Coral's processes on one machine.")
    parser.add_argument(
        "--coordinator", required=True, help="ZeroMQ address of the coordinator's control socket"
    )
    parser.add_argument("--machine", required=True, help="the machine's id at its cloud")
    parser.add_argument("--grace", type=float, default=60.0, help="seconds to outlive a silent coordinator")
    parser.add_argument("--logs", type=Path, required=True, help="folder for the processes' output")
    given = parser.parse_args()
    agent = Agent(coordinator=given.coordinator, machine=given.machine, grace_s=given.grace, logs=given.logs)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: agent.leave(signal.Signals(signum).name))
    agent.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
