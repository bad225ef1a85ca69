"""`python -m coral.core.serve.planner`: started by a coordinator, by no person."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from coral.core.serve.planner.setup import PlannerSetup


def main() -> int:
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="coral planner", description="Plans for a coordinator.")
    parser.add_argument("--coordinator", required=True, help="ZeroMQ address of its control socket")
    parser.add_argument("--library", type=Path, required=True, help="folder of the template library")
    parser.add_argument("--config-json", required=True, help="what `PlannerSetup` holds, as JSON")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    setup = msgspec.json.decode(given.config_json, type=PlannerSetup)

    from coral.core.generate.library import open_library
    from coral.core.plugins import load_plugins
    from coral.core.serve.planner.answering import Answering
    from coral.core.serve.planner.process import PlannerProcess
    from coral.core.solve import supervised_solver

    registry = load_plugins(setup.plugin_paths)
    planner = registry.build("planner", setup.planner.use, setup.planner.options)
    solver = supervised_solver(
        registry, setup.solver.use, setup.solver.options, time_limit_s=setup.solver_time_limit_s
    )
    library = open_library(given.library)
    entries = library.manifest.entries.values()
    for entry in entries:
        library.table(entry.model, entry.phase)  # read now, so that no ask waits for the disk
    process = PlannerProcess(
        Answering(planner, library, solver),
        coordinator=given.coordinator,
        templates=sum(entry.rows for entry in entries),
        parent=parent,
        grace_s=setup.grace_s,
        beat_s=setup.beat_s,
        solve_limit_s=setup.solve_limit_s,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _frame: process.leave(signal.Signals(signum).name))
    print(f"planner: leaves: {process.run()}", file=sys.stderr, flush=True)
    os._exit(0)  # a solver thread that is in the middle of a solve must not hold the process


if __name__ == "__main__":
    main()
