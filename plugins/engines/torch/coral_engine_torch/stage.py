"""Loads one stage: checks what it is told, reads its tensors, sizes and allocates its KV."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from coral.errors import EngineError
from coral.types.stage import StageSpec
from coral_engine_torch.architecture import Architecture, read_architecture
from coral_engine_torch.budget import (
    Limits,
    block_bytes,
    kv_blocks,
    runtime_bytes,
    weight_bytes,
    workspace_bytes,
)
from coral_engine_torch.checkpoint import Checkpoint
from coral_engine_torch.executor import Executor
from coral_engine_torch.kv import KvCache
from coral_engine_torch.rope import Rope
from coral_engine_torch.rows import dtype_of
from coral_engine_torch.threads import use_threads
from coral_engine_torch.weights import Loader

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class LoadedStage:
    arch: Architecture
    executor: Executor
    cache: KvCache
    dtype: torch.dtype
    device: torch.device
    weight_bytes: int
    bytes_read: int
    load_seconds: float


def load_stage(spec: StageSpec) -> LoadedStage:
    """Raises EngineError where the model, dtype, device or arguments are not the engine's, where the layers
    do not match the checkpoint, and where weights and KV do not fit `spec.memory_bytes`."""
    began = time.perf_counter()
    where = f"{spec.node} (layers [{spec.first_layer}, {spec.end_layer}) of {spec.model})"
    if spec.args:
        raise EngineError(f"{where}: the torch engine takes no args, got {', '.join(spec.args)}")
    use_threads(spec.threads)
    device, dtype = _device(spec), dtype_of(spec.dtype)
    arch = read_architecture(Path(spec.source))
    _check_range(spec, arch, where)
    limits = Limits(
        step_tokens=spec.max_step_tokens, step_requests=spec.max_step_requests, model_len=spec.max_model_len
    )
    layers = spec.end_layer - spec.first_layer
    fixed = runtime_bytes(device)
    workspace = workspace_bytes(arch, limits, dtype.itemsize, last=spec.is_last)
    expected = weight_bytes(arch, layers, dtype.itemsize, first=spec.is_first, last=spec.is_last)
    block_size = int(spec.options.get("block_size") or DEFAULT_BLOCK_SIZE)
    block = block_bytes(arch, layers, block_size, dtype.itemsize)

    def blocks_beside(weights: int) -> int:
        return kv_blocks(
            memory=spec.memory_bytes,
            fixed=fixed,
            weights=weights,
            workspace=workspace,
            block=block,
            block_size=block_size,
            model_len=spec.max_model_len,
            wanted=spec.options.get("kv_blocks"),
            where=where,
        )

    blocks_beside(expected)  # refuse before reading anything
    with Checkpoint(Path(spec.source)) as checkpoint:
        weights = Loader(arch, checkpoint, dtype, device).stage(
            spec.first_layer, spec.end_layer, embedding=spec.is_first, head=spec.is_last
        )
    blocks = blocks_beside(weights.bytes)
    cache = KvCache(layers, blocks, block_size, arch.kv_heads, arch.head_dim, dtype, device)
    rope = Rope(arch, spec.max_model_len, dtype, device)
    return LoadedStage(
        arch=arch,
        executor=Executor(arch, weights, cache, rope),
        cache=cache,
        dtype=dtype,
        device=device,
        weight_bytes=weights.bytes,
        bytes_read=checkpoint.bytes_read,
        load_seconds=time.perf_counter() - began,
    )


def _device(spec: StageSpec) -> torch.device:
    """The one device of the stage; the launch made only the stage's own devices visible."""
    if spec.device_kind == "cpu":
        return torch.device("cpu")
    if len(spec.devices) > 1:
        raise EngineError(f"{spec.node} has {len(spec.devices)} GPUs; the torch engine runs on one")
    if not torch.cuda.is_available():
        raise EngineError(
            f"{spec.node} asks for a {spec.device_kind} device and torch {torch.__version__} finds none",
            mend="install a CUDA build of torch in the engine's environment, or check the driver",
        )
    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, spec.memory_bytes / total), device)
    return device


def _check_range(spec: StageSpec, arch: Architecture, where: str) -> None:
    if spec.layers_total != arch.layers or not 0 <= spec.first_layer < spec.end_layer <= arch.layers:
        raise EngineError(
            f"{where}: {spec.source} has {arch.layers} layers, the plan was made for {spec.layers_total}",
            mend="rebuild the templates for this checkpoint",
        )
    if spec.is_first != (spec.first_layer == 0) or spec.is_last != (spec.end_layer == arch.layers):
        raise EngineError(f"{where}: stage {spec.stage} of {spec.stages} does not hold the layers at its end")
    if spec.max_model_len > arch.max_positions:
        raise EngineError(
            f"{where}: max_model_len {spec.max_model_len} exceeds the model's {arch.max_positions} positions",
            mend=f"set max_model_len to at most {arch.max_positions}",
        )
