"""See `benchmarks.chaos`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.chaos import scenarios

SCENARIOS: dict[str, Callable[[Path, scenarios.Given], dict[str, Any]]] = {
    "churn": scenarios.churn,
    "harsh": scenarios.harsh,
    "stage": scenarios.stage,
    "aborts": scenarios.aborts,
    "starts": scenarios.starts,
}
FAULTS = ("hung", "lost", "unequal")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), default="churn")
    parser.add_argument("--engine", choices=("mock", "torch"), default="mock")
    parser.add_argument("--disaggregate", action="store_true", help="prefill and decode apart")
    parser.add_argument("--scale", type=float, default=1.0, help="share of requests, acts and seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the system's files; a temporary one otherwise")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coral-chaos-") as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = scenarios.Given(
            engine=given.engine, scale=given.scale, seed=given.seed, disaggregate=given.disaggregate
        )
        found = SCENARIOS[given.scenario](folder, chosen)
    record = {
        "benchmark": "chaos",
        "scenario": given.scenario,
        "engine": given.engine,
        "disaggregate": given.disaggregate,
        "seed": given.seed,
        **found,
        "whole_s": round(time.monotonic() - began, 1),
    }
    if given.json:
        print(json.dumps(record))
    else:
        for name, value in record.items():
            print(f"{name:24} {value}")
    return 1 if any(record.get(fault) for fault in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
