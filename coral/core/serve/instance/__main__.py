"""`python -m coral.core.serve.instance`: see `coral.core.serve.instance.command`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

from coral.core.serve.instance.scheduler import Scheduler, SchedulerArguments
from coral.core.serve.lifeline import tie_to_parent
from coral.core.serve.net.keys import ProcessKeys
from coral.core.serve.net.routable import own_address
from coral.errors import CoralError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m coral.core.serve.instance")
    parser.add_argument("--coordinator", required=True, help="the coordinator's control address")
    parser.add_argument("--instance", required=True, help="this instance's id")
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine")
    parser.add_argument("--sockets", default="", help="folder of its sockets where it has no keys")
    parser.add_argument("--start-timeout", type=float, default=600.0, help="seconds for all workers to load")
    parser.add_argument("--silence", type=float, default=8.0, help="seconds after which a worker is dead")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to wait for a silent coordinator")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tie_to_parent()
    host = own_address(given.host, what=f"the machine of {given.instance}'s scheduler", alone=True)
    return Scheduler(
        SchedulerArguments(
            coordinator=given.coordinator,
            instance=given.instance,
            generation=given.generation,
            host=host,
            sockets=given.sockets,
            keys=ProcessKeys.taken(os.environ),
            start_timeout_s=given.start_timeout,
            silence_s=given.silence,
            grace_s=given.grace,
        )
    ).run()


if __name__ == "__main__":
    try:
        status = main()
    except CoralError as error:
        logging.getLogger("coral.scheduler").error("%s", error)
        status = 1
    sys.exit(status)
