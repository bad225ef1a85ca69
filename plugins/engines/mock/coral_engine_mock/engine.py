"""The coordinator's half."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from coral.hookspecs.engine import EngineCapabilities, Launch
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral_engine_mock.options import MockOptions

PRELOAD = ("coral_engine_mock.runner",)


class MockEngine:
    def __init__(self, options: MockOptions) -> None:
        self._options = options

    def capabilities(self, shape: ModelShape, gpu: Gpu) -> EngineCapabilities:
        return EngineCapabilities(
            version=version("coral-engine-mock"),
            block_size=self._options.block_size,
            dtypes=("float32", "bfloat16", "float16", "float8"),
            max_step_tokens=self._options.step_tokens,
            max_step_requests=self._options.step_requests,
            max_tp=8,
            reads_weights=False,
        )

    def launch(self, worker_argv: Sequence[str], *, threads: int, devices: Sequence[int]) -> Launch:
        env = {"OMP_NUM_THREADS": str(threads)}
        return Launch(argv=(sys.executable, *worker_argv), env=env, preload=PRELOAD)

    def measure(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Launch | None:
        task = {
            "shape": msgspec.to_builtins(shape),
            "gpu": gpu.name,
            "dtype": dtype,
            "cost": self._options.cost.model_dump(),
        }
        argv = ("-m", "coral_engine_mock.measure", json.dumps(task, separators=(",", ":")))
        return self.launch(argv, threads=1, devices=())


def build(options: MockOptions) -> MockEngine:
    return MockEngine(options)
