"""Ways to run a wave of requests through a model, each with its processes: see `benchmarks.runtime`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec
import psutil
from msgspec import Struct

from benchmarks.http_load import complete
from coral.testing.instance import Answer, InstanceUnderTest, stages
from coral.testing.system import coral_serve
from coral.types.request import GenerateRequest, Sampling, Token
from coral.types.stage import EngineStats, StageSpec

PROCESS = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "0",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}
"""How the torch engine's processes are launched."""
WITHIN_S = 600.0


class Wave(Struct, frozen=True, kw_only=True):
    """What one wave took. `cpu_s` by role; the role `engine` is every process that holds one."""

    tokens: int
    seconds: float
    cpu_s: dict[str, float]
    shares: dict[str, dict[str, float]] = {}

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Variant(Protocol):
    @property
    def name(self) -> str: ...

    def wave(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> Wave: ...


def placement(
    cuts: Sequence[int], nodes: Sequence[int], folder: Path
) -> tuple[tuple[tuple[StageSpec, float], ...], ...]:
    return stages(
        cuts=cuts,
        nodes=nodes,
        engine="torch",
        source=str(folder),
        max_model_len=512,
        step_tokens=512,
        step_requests=64,
        memory_bytes=3 << 30,
    )


class Bare:
    name = "bare"

    def __init__(self, folder: Path, layers: int) -> None:
        self._spec = placement((layers,), (1,), folder)[0][0][0]

    def __enter__(self) -> Self:
        spec = msgspec.json.encode(self._spec).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runtime_bare", spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **PROCESS},
            start_new_session=True,  # as all of Coral's processes: a kernel may share time out by session
        )
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wave(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> Wave:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        seen = json.loads(self._answer())
        return Wave(tokens=seen["tokens"], seconds=seen["seconds"], cpu_s={"engine": seen["cpu_s"]})

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare engine loop has ended")
        return line


class _Counting(InstanceUnderTest):
    """Keeps a count and the end of each answer, no more: the coordinator's part must cost little here."""

    def _take(self, tokens: Iterable[Token]) -> None:
        for token in tokens:
            answer = self.answers.setdefault(token.request, Answer(tokens=[], received=[]))
            answer.tokens.append(token.token)
            answer.finish = token.finish or answer.finish


class Instance:
    def __init__(self, name: str, folder: Path, cuts: Sequence[int], nodes: Sequence[int]) -> None:
        self.name = name
        self._stages = placement(cuts, nodes, folder)
        self._stack = ExitStack()
        self._waves = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            before = {key: os.environ.get(key) for key in PROCESS}
            os.environ.update(PROCESS)
            stack.callback(_restore, before)
            self._instance = self._stack.enter_context(
                _Counting(self._stages, expected_output_tokens=256, grace_s=36_000.0)
            )
            self._instance.wait_ready(WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wave(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> Wave:
        instance, self._waves = self._instance, self._waves + 1
        requests = [
            GenerateRequest(
                id=f"w{self._waves}r{number}",
                model="model",
                prompt_ids=prompt,
                sampling=Sampling(temperature=0.0, max_tokens=tokens),
            )
            for number, prompt in enumerate(prompts)
        ]
        assert instance.scheduler is not None
        roles = {"scheduler": [instance.scheduler.pid]}
        roles["engine"] = [worker.pid for worker in instance.workers.values()]
        for _ in range(5):  # what was said while others ran must not be taken for an answer
            instance.serve(0.01)
        stats, cpu = instance.fresh_stats().nodes, _cpu_s(roles)
        began = time.perf_counter()
        for request in requests:
            instance.submit(request)
        answers = [instance.answers[request.id] for request in requests]
        instance.wait(lambda: all(answer.ended for answer in answers), WITHIN_S, "finished")
        seconds = time.perf_counter() - began
        after = instance.fresh_stats().nodes
        spent = {role: total - cpu[role] for role, total in _cpu_s(roles).items()}
        for request in requests:
            del instance.answers[request.id]
        count = sum(len(answer.tokens) for answer in answers)
        if count != tokens * len(prompts):
            raise RuntimeError(f"{self.name}: {count} tokens, {[a.error for a in answers if a.error]}")
        return Wave(tokens=count, seconds=seconds, cpu_s=spent, shares=_shares(stats, after))


class Served:
    """`coral serve` on a local machine of one device, which holds the whole model."""

    name = "served"

    def __init__(self, model: str, folder: Path, scratch: Path) -> None:
        self._model = model
        self._scratch = scratch
        self._config = {
            "models": [
                {
                    "name": model,
                    "source": str(folder),
                    "dtype": "float32",
                    "slo": {"prefill": "60s", "decode": "10s"},
                    "demand": {"requests_per_s": 0.01, "input_tokens": 16, "output_tokens": 256},
                    "max_model_len": 512,
                }
            ],
            "engine": {"use": "torch", "step_tokens": 512},
            "clouds": [
                {"use": "local", "machines": [{"name": "one", "devices": 1, "memory": "3GiB", "price": 1}]}
            ],
            "serve": {"http": "127.0.0.1:0", "disaggregate": False},
            "state": {"folder": str(scratch / "state")},
        }
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._system = self._stack.enter_context(coral_serve(self._config, self._scratch))
        self._system.wait_ready(WITHIN_S)
        assert self._system.url is not None
        self._port = int(self._system.url.rpartition(":")[2].rstrip("/"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wave(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> Wave:
        return asyncio.run(self._wave(prompts, tokens))

    async def _wave(self, prompts: Sequence[tuple[int, ...]], tokens: int) -> Wave:
        before = self._system.status()
        roles = _roles(before)
        cpu = _cpu_s(roles)
        fields = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        streams = await asyncio.gather(
            *(complete(self._port, self._model, list(prompt), WITHIN_S, **fields) for prompt in prompts)
        )
        spent = {role: total - cpu[role] for role, total in _cpu_s(roles).items()}
        wrong = [seen.error for seen in streams if seen.error or seen.output_tokens != tokens]
        if wrong:
            raise RuntimeError(f"served: {wrong[0]}")
        seconds = max(seen.last_s for seen in streams) - min(seen.asked_s for seen in streams)
        return Wave(tokens=tokens * len(prompts), seconds=seconds, cpu_s=spent)


def _roles(status: dict[str, Any]) -> dict[str, list[int]]:
    roles: dict[str, list[int]] = {"coordinator": [status["pid"]], "scheduler": [], "engine": []}
    for instance in status["instances"]:
        roles["scheduler"].append(instance["scheduler"]["pid"])
        roles["engine"] += [node["pid"] for stage in instance["stages"] for node in stage["nodes"]]
    return roles


def _cpu_s(roles: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {
        role: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids) for role, pids in roles.items()
    }


def _shares(
    before: Mapping[str, EngineStats], after: Mapping[str, EngineStats]
) -> dict[str, dict[str, float]]:
    shares = {}
    for node, now in after.items():
        then = before[node]
        seconds = now.seconds - then.seconds
        step = (now.step_seconds - then.step_seconds) / seconds
        wait = (now.wait_seconds - then.wait_seconds) / seconds
        shares[node] = {"step": step, "wait": wait, "other": 1 - step - wait}
    return shares


def _restore(values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
