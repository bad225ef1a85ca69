"""`python -m coral.core.serve.worker`: see `coral.core.serve.worker.command`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from typing import NoReturn

from coral.core.serve.lifeline import tie_to_parent
from coral.core.serve.net.keys import ProcessKeys
from coral.core.serve.net.routable import own_address
from coral.core.serve.worker.process import WorkerArguments, WorkerProcess
from coral.errors import CoralError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m coral.core.serve.worker")
    parser.add_argument("--scheduler", required=True, help="address of the instance's scheduler")
    parser.add_argument("--node", required=True, help="this node's id")
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine")
    parser.add_argument("--sockets", default="", help="folder of its sockets where it has no keys")
    parser.add_argument("--channel", choices=("zmq", "gloo", "nccl"), default="zmq", help="of payloads")
    parser.add_argument("--plugin-path", action="append", default=[], help="a one-file plugin")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to wait for a silent scheduler")
    parser.add_argument("--step-limit", type=float, default=120.0, help="seconds a step may take")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tie_to_parent()
    host = own_address(given.host, what=f"the machine of node {given.node}", alone=True)
    return WorkerProcess(
        WorkerArguments(
            scheduler=given.scheduler,
            node=given.node,
            plugin_paths=tuple(given.plugin_path),
            sockets=given.sockets,
            keys=ProcessKeys.taken(os.environ),
            host=host,
            channel=given.channel,
            grace_s=given.grace,
            step_limit_s=given.step_limit,
        )
    ).run()


def leave(code: int) -> NoReturn:
    """End here and now: everything of ours is closed, and what a communicator's thread still waits for in
    its library would keep an interpreter that ends in good order, for minutes or for ever."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        status = main()
    except CoralError as error:
        logging.getLogger("coral.worker").error("%s", error)
        status = 1
    leave(status)
