"""Times real steps of layers of a given shape with random weights; prints `Measurements` as JSON.

`python -m coral_engine_torch.measure TASK`, started by `TorchEngine.measure`. On a CPU the time of a step is
the CPU time of this thread, not wall time, so that a busy machine hardly disturbs it; on CUDA it is wall time
with the device drained. Every step runs over other layers than the one before, so that weights come from
memory and not from a cache.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec
import torch

from coral.errors import CoralError
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Measurement, Measurements
from coral_engine_torch.architecture import from_shape
from coral_engine_torch.bench import Bench, Case
from coral_engine_torch.budget import (
    Limits,
    block_bytes,
    runtime_bytes,
    spare_bytes,
    weight_bytes,
    workspace_bytes,
)
from coral_engine_torch.rows import dtype_of
from coral_engine_torch.threads import use_threads
from coral_engine_torch.version import engine_version

BUDGET_S = 12.0
"""Of stepping; importing torch and drawing weights come on top."""
REPEATS = 5


class Task(msgspec.Struct, frozen=True, kw_only=True):
    shape: ModelShape
    gpu: Gpu
    dtype: str
    block_size: int
    step_tokens: int
    step_requests: int


def cases(step_tokens: int, step_requests: int, counts: tuple[int, int]) -> list[Case]:
    """What to time, the most telling first: the budget may end before the list does."""
    few, many = counts
    bare = [
        Case(rows=(64,) * n, layers=layers)
        for n in (1, 8, 32)
        if n <= step_requests
        for layers in (many, few)
    ]
    chunks = [
        Case(chunk=n, layers=layers) for n in (16, 128, 256) if n <= step_tokens for layers in (many, few)
    ]
    ends = [
        Case(rows=(64,) * n, layers=few, first=first, last=not first)
        for first in (False, True)
        for n in (1, 16)
        if n <= step_requests
    ]
    far = [
        Case(rows=(1024,) * min(8, step_requests), layers=many),
        Case(chunk=min(128, step_tokens), start=512, layers=many),
        Case(rows=(256,) * min(4, step_requests), chunk=min(64, step_tokens // 2), layers=many),
        Case(chunk=min(256, step_tokens), layers=few, first=True),
        Case(rows=(512,) * min(16, step_requests), layers=few),
        Case(rows=(64,) * min(16, step_requests), layers=many),
        Case(chunk=min(64, step_tokens), layers=many),
    ]
    return [bare[0], chunks[0], *ends[:2], *bare[1:], *chunks[1:], *ends[2:], *far]


def clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.thread_time

    def drained() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return drained


def measure(task: Task) -> Measurements:
    """Raises EngineError where not even one layer with the ends fits what memory is free.

    Devices that differ only in memory share a measurement, so a device's own memory is no limit.
    """
    arch, dtype = from_shape(task.shape), dtype_of(task.dtype)
    device = torch.device("cpu" if task.gpu.kind == "cpu" else "cuda")
    use_threads(max(1, task.gpu.threads))
    runtime = runtime_bytes(device)
    bench = Bench.within(arch, dtype, device, task.block_size, memory=spare_bytes(device))
    now, began = clock(device), time.perf_counter()
    points: list[Measurement] = []
    for case in cases(task.step_tokens, task.step_requests, bench.counts):
        if points and time.perf_counter() - began > BUDGET_S:
            break
        seconds: list[float] = []
        while len(seconds) < REPEATS + 1 and (len(seconds) < 3 or time.perf_counter() - began < BUDGET_S):
            step = bench.prepare(case, len(seconds))
            start = now()
            step()
            seconds.append(now() - start)
        taken = sorted(seconds[1:])  # the first warms up
        points.append(
            Measurement(
                work=case.work,
                layers=case.layers,
                first=case.first,
                last=case.last,
                seconds=taken[len(taken) // 4],
            )
        )
    limits = Limits(
        step_tokens=task.step_tokens, step_requests=task.step_requests, model_len=arch.max_positions
    )
    size = dtype.itemsize
    table = arch.vocab * arch.hidden * size
    return Measurements(
        engine="torch",
        engine_version=engine_version(),
        device=task.gpu.name,
        points=tuple(points),
        fixed_bytes=runtime + workspace_bytes(arch, limits, size, last=True),
        layer_bytes=weight_bytes(arch, 1, size, first=False, last=False),
        embed_bytes=table,
        head_bytes=table,
        kv_token_bytes=block_bytes(arch, 1, 1, size),
    )


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: python -m coral_engine_torch.measure TASK_AS_JSON", file=sys.stderr)
        return 2
    try:
        found = measure(msgspec.json.decode(argv[1], type=Task))
    except (CoralError, msgspec.DecodeError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
