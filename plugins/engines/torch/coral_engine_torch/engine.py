"""The coordinator's half: what the engine can do and how its processes start. Imports no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from coral.hookspecs.engine import EngineCapabilities, Launch
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral_engine_torch.architecture import FAMILIES, family_of
from coral_engine_torch.version import engine_version

if TYPE_CHECKING:
    from coral_engine_torch.options import TorchOptions

DTYPES = ("float32", "bfloat16", "float16")
MAX_STEP_TOKENS = 512
MAX_STEP_REQUESTS = 64
PRELOAD = ("coral_engine_torch.runner",)


class TorchEngine:
    def __init__(self, options: TorchOptions) -> None:
        self._options = options

    def capabilities(self, shape: ModelShape, gpu: Gpu) -> EngineCapabilities:
        return EngineCapabilities(
            version=engine_version(),
            block_size=self._options.block_size,
            dtypes=DTYPES,
            max_step_tokens=MAX_STEP_TOKENS,
            max_step_requests=MAX_STEP_REQUESTS,
            max_tp=1,
            refusal=_refusal(shape, gpu),
        )

    def launch(self, worker_argv: Sequence[str], *, threads: int, devices: Sequence[int]) -> Launch:
        env = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads of several workers starve one another
            "GOMP_SPINCOUNT": "0",
            # Buffers of a step come from memory that is kept: pages fetched anew cost more than filling them.
            "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
            "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices)),
        }
        return Launch(argv=(sys.executable, *worker_argv), env=env, preload=PRELOAD)

    def measure(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Launch | None:
        if gpu.kind == "rocm":
            return None
        task = {
            "shape": msgspec.to_builtins(shape),
            "gpu": msgspec.to_builtins(gpu),
            "dtype": dtype,
            "block_size": self._options.block_size,
            "step_tokens": MAX_STEP_TOKENS,
            "step_requests": MAX_STEP_REQUESTS,
        }
        argv = ("-m", "coral_engine_torch.measure", json.dumps(task, separators=(",", ":")))
        return self.launch(argv, threads=gpu.threads, devices=(0,) if gpu.kind == "cuda" else ())


def build(options: TorchOptions) -> TorchEngine:
    return TorchEngine(options)


def _refusal(shape: ModelShape, gpu: Gpu) -> str | None:
    if family_of(shape.architecture) is None:
        return f"the torch engine does not run {shape.architecture}; it runs {', '.join(FAMILIES)}"
    for dtype in dict.fromkeys((shape.weight_dtype, shape.kv_dtype, shape.activation_dtype)):
        if dtype not in DTYPES:
            return f"the torch engine runs no {dtype}; set the model's dtype to one of {', '.join(DTYPES)}"
    if len({shape.weight_dtype, shape.kv_dtype, shape.activation_dtype}) > 1:
        return "the torch engine holds weights, KV and activations in one dtype"
    if gpu.kind == "rocm":
        return f"the torch engine was not run on {gpu.kind} ({gpu.name})"
    return None
