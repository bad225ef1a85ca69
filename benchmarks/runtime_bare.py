"""The bare engine loop that `benchmarks.runtime` compares with: a StageRunner in one process, nothing else.

    python -m benchmarks.runtime_bare SPEC

SPEC is a `StageSpec` as JSON. Reads one wave per line, `{"prompts": [[ids], …], "tokens": n}`: opens all of
them, runs their prompts within the step's limits, decodes all in one batch until each has n tokens, releases
them, and answers `{"tokens", "seconds", "cpu_s"}`.
"""

from __future__ import annotations

import json
import sys
import time

import msgspec

from coral.core.plugins import load_plugins
from coral.hookspecs.engine import StageRunner
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Chunk, StageSpec


def wave(runner: StageRunner, spec: StageSpec, prompts: list[tuple[int, ...]], tokens: int) -> int:
    """Tokens generated; all sequences greedy, of one length."""
    names = [f"w{number}" for number in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        sampling = Sampling(temperature=0.0, max_tokens=tokens)
        request = GenerateRequest(id=name, model=spec.model, prompt_ids=prompt, sampling=sampling)
        runner.open(request, len(prompt) + tokens)
    known = {name: len(prompt) for name, prompt in zip(names, prompts, strict=True)}
    waiting = list(names)
    while waiting:
        chunks, room = [], spec.max_step_tokens
        while waiting and known[waiting[0]] <= room:
            room -= known[waiting[0]]
            chunks.append(Chunk(request=waiting[0], start=0, n=known[waiting.pop(0)]))
        runner.step(chunks)
    for step in range(tokens - 1):
        runner.step([Chunk(request=name, start=known[name] + step, n=1) for name in names])
    runner.release(names)
    return tokens * len(prompts)


def main(argv: list[str]) -> int:
    spec = msgspec.json.decode(argv[1], type=StageSpec)
    runner = load_plugins().load_stage(spec)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [tuple(prompt) for prompt in asked["prompts"]]
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = wave(runner, spec, prompts, asked["tokens"])
        answer = {
            "tokens": tokens,
            "seconds": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
        }
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
