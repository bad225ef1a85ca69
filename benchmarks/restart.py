"""How long serving is away when the coordinator is killed and started again.

    python -m benchmarks.restart --json

A `coral serve` on the local machine is killed with kill -9 under load, and started again on its state
folder, round after round. `served_s`: from the start of the new one until it has answered a request;
`back_s`: until all agents, schedulers and workers of before are its own; `broke_s`: from the kill until the
last open stream has ended at its client. Every round also holds that no process was replaced and no weights
were read again. The last line is one JSON object with `--json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from coral.testing.restarts import Runs, Stream, loads, pids, running
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until

WITHIN_S = 180.0


class Round(Struct, frozen=True, kw_only=True):
    served_s: float
    back_s: float
    broke_s: float


def config(engine: str, scratch: Path) -> dict[str, Any]:
    """One instance of a tiny model on one local machine."""
    source = make_tiny("llama", scratch / "tiny", layers=6)
    engines = {
        "mock": {"use": "mock", "vocab": 259, "load": "100ms", "cost": {"overhead_s": 0.01}},
        "torch": {"use": "torch", "step_tokens": 256},
    }
    return {
        "models": [
            {
                "name": "tiny",
                "source": str(source),
                "dtype": "float32",
                "slo": {"prefill": "60s", "decode": "10s"},
                "demand": {"requests_per_s": 0.01, "input_tokens": 16, "output_tokens": 64},
                "max_model_len": 512,
            }
        ],
        "engine": engines[engine],
        "clouds": [
            {
                "use": "local",
                "folder": str(scratch / "cloud"),
                "machines": [{"name": "one", "memory": "3GiB", "price": 1}],
            }
        ],
        "serve": {"http": "127.0.0.1:0", "grace": "120s"},
        "state": {"folder": str(scratch / "state")},
    }


def body(tokens: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": "Hello there",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def one_round(runs: Runs, streams: int) -> Round:
    old = runs.systems[-1]
    assert old.post("/v1/completions", body(4), WITHIN_S)[0] == 200
    time.sleep(2.0)  # the engines' figures are sent every second
    before = old.status()
    clients = [Stream(old, body(480)) for _ in range(streams)]
    wait_until(lambda: all(b"data:" in one.text for one in clients), WITHIN_S, "tokens on all streams")
    killed = time.monotonic()
    runs.kill()
    wait_until(lambda: all(one.ended for one in clients), WITHIN_S, "the end of all streams")
    broke_s = time.monotonic() - killed
    started = time.monotonic()
    new = runs.start()
    new.wait(lambda: new.get("/ready")[0] == 200, WITHIN_S, "readiness")
    assert new.post("/v1/completions", body(4), WITHIN_S)[0] == 200
    served_s = time.monotonic() - started
    new.wait(lambda: pids(new.status()) == pids(before), WITHIN_S, "all processes of before, and no others")
    back_s = time.monotonic() - started
    assert loads(new.status()) == loads(before), "weights were loaded again"
    new.wait_ready(WITHIN_S)
    return Round(served_s=served_s, back_s=back_s, broke_s=broke_s)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=("mock", "torch"), default="torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8, help="open streams when it is killed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    given = parser.parse_args(arguments)
    rounds: list[Round] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = stack.enter_context(running(config(given.engine, scratch), scratch))
        runs.start().wait_ready(WITHIN_S)
        for number in range(given.rounds):
            rounds.append(one_round(runs, given.streams))
            if not given.json:
                one = rounds[-1]
                print(
                    f"round {number + 1}: streams ended after {one.broke_s:.2f} s, "
                    f"served after {one.served_s:.2f} s, all back after {one.back_s:.2f} s"
                )
        assert runs.systems[-1].stop() == 0
        runs.wait_gone(30.0)
    result = {
        "engine": given.engine,
        "rounds": [to_builtins(one) for one in rounds],
        "served_median_s": statistics.median(one.served_s for one in rounds),
        "back_median_s": statistics.median(one.back_s for one in rounds),
        "broke_median_s": statistics.median(one.broke_s for one in rounds),
        "replaced_processes": 0,
        "weights_loaded_again": 0,
    }
    print(json.dumps(result) if given.json else f"median: served after {result['served_median_s']:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
