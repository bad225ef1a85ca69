"""How a device's memory is shared out: runtime, weights, workspace, KV."""

from __future__ import annotations

from pathlib import Path

import torch
from msgspec import Struct

from coral.errors import EngineError
from coral_engine_torch.architecture import Architecture
from coral_engine_torch.batch import GROUP_TOKENS, PIECE_SCORES
from coral_engine_torch.sampler import DRAW_SCORES

CUDA_CONTEXT_BYTES = 640 << 20
"""CUDA context, kernels and cuBLAS workspace of one process, which no allocator counts."""
_SLACK_BYTES = 12 << 20


class Limits(Struct, frozen=True, kw_only=True):
    """What one step may hold at most, and how long a sequence may be."""

    step_tokens: int
    step_requests: int
    model_len: int


def runtime_bytes(device: torch.device) -> int:
    """Memory of this process that is neither weights, workspace nor KV: on a CPU its private anonymous
    memory now (imported code lies in shared file pages and does not count)."""
    if device.type != "cpu":
        return CUDA_CONTEXT_BYTES
    return _proc("/proc/self/status", "RssAnon")


def spare_bytes(device: torch.device) -> int:
    """Memory that a measuring process may take beside what runs here: half of what is free."""
    if device.type == "cpu":
        return _proc("/proc/meminfo", "MemAvailable") // 2
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) // 2


def _proc(path: str, key: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise EngineError(f"{path} does not say {key}", mend="run on Linux 4.5 or later")


def workspace_bytes(arch: Architecture, limits: Limits, itemsize: int, *, last: bool) -> int:
    """An upper bound of what one step allocates beside weights and KV, and of the rope tables."""
    rows, width = limits.step_tokens, arch.heads * arch.head_dim
    kv_width = arch.kv_heads * arch.head_dim
    inner = max(arch.intermediate, arch.expert_intermediate * (2 if arch.experts else 1))
    layer = rows * itemsize * (5 * arch.hidden + 3 * (width + 2 * kv_width) + 4 * inner)
    gathered = 2 * GROUP_TOKENS * kv_width * itemsize + PIECE_SCORES * 5
    scores = 3 * PIECE_SCORES * arch.heads * 4 if arch.sinks else 0
    draws = 72 * max(DRAW_SCORES, arch.vocab)  # bytes per score: sorted, summed, indexed in 64 bits
    logits = 12 * limits.step_requests * arch.vocab + draws if last else 0
    rope = limits.model_len * arch.head_dim * (itemsize + 8)
    return max(layer + gathered + scores, logits) + rope + _SLACK_BYTES


def weight_bytes(arch: Architecture, layers: int, itemsize: int, *, first: bool, last: bool) -> int:
    """Weights of a stage; a tied embedding is held once where first and last meet."""
    width, kv_width = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    attention = arch.hidden * (2 * width + 2 * kv_width)
    if arch.experts:
        mlp = arch.experts * (3 * arch.hidden * arch.expert_intermediate + arch.hidden)
    else:
        mlp = 3 * arch.hidden * arch.intermediate
    table = arch.vocab * arch.hidden
    tables = int(first) + int(last) - int(first and last and arch.tied)
    norms = 2 * arch.hidden + 2 * (arch.head_dim if arch.qk_norm else 0)
    biases = 0
    if arch.family in ("qwen2", "gpt_oss"):
        biases += width + 2 * kv_width
    if arch.family == "gpt_oss":
        biases += arch.hidden + arch.heads + arch.experts * (1 + 2 * arch.expert_intermediate + arch.hidden)
    total = layers * (attention + mlp + norms + biases) + tables * table + (arch.hidden if last else 0)
    return total * itemsize


def block_bytes(arch: Architecture, layers: int, block_size: int, itemsize: int) -> int:
    return layers * 2 * block_size * arch.kv_heads * arch.head_dim * itemsize


def kv_blocks(
    *,
    memory: int,
    fixed: int,
    weights: int,
    workspace: int,
    block: int,
    block_size: int,
    model_len: int,
    wanted: int | None,
    where: str,
) -> int:
    """Blocks that fit beside the rest, or `wanted` if they fit.

    Raises EngineError where `wanted` does not fit, or, if None, where not one sequence of `model_len` does.
    """
    left = memory - fixed - weights - workspace
    fit = max(0, left // block)
    need = wanted if wanted is not None else -(-model_len // block_size)
    if fit >= need:
        return wanted if wanted is not None else fit
    parts = f"{_mb(memory)} less {_mb(fixed)} runtime, {_mb(weights)} weights and {_mb(workspace)} workspace"
    if wanted is not None:
        raise EngineError(
            f"{where}: {wanted} KV blocks do not fit; there is room for {fit} ({parts})",
            mend=f"set kv_blocks to at most {fit}, or give the node {_mb((need - fit) * block)} more",
        )
    raise EngineError(
        f"{where}: KV for one sequence of {model_len} tokens does not fit; there is room for"
        f" {fit * block_size} tokens ({parts})",
        mend=f"lower max_model_len to {fit * block_size}, hold fewer layers, or give the node"
        f" {_mb(block * need - left)} more"
        if fit
        else f"hold fewer layers here, or give the node {_mb(block * need - left)} more",
    )


def _mb(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
