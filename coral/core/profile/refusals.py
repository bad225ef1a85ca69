"""Why a slice of GPUs cannot hold layers of a model, in words: what a rate of 0 in T̂ stands for."""

from __future__ import annotations

import math

import numpy as np

from coral.core.profile.device import Device
from coral.core.profile.rates import RULES
from coral.core.profile.windows import layer_tokens
from coral.errors import UnknownDegree
from coral.types.model import Phase, Role

GIB = 1 << 30


def refusal(device: Device, phase: Phase, role: Role, tp: int, layers: int, stages: int) -> str | None:
    """None where the slice can hold `layers` layers in that role of a pipeline of `stages` stages."""
    where = f"{device.gpu.name} x{tp}" if tp > 1 else device.gpu.name
    if device.able.refusal is not None:
        return f"{where}: {device.able.refusal}"
    index = layers - 1
    free = float(device.free_bytes(role, tp)[index])
    of_memory = (
        f"of {device.gpu.memory_bytes / GIB:.1f} GiB, {device.cost.fixed_bytes / GIB:.1f} GiB not usable"
    )
    if free < 0:
        return (
            f"{where}: weights of {_layers(layers)} are {-free / GIB:.1f} GiB a GPU too large ({of_memory})"
        )
    tokens = float(layer_tokens(device.model.shape, device.work.longest(phase))[layers])
    missing = tokens * device.cost.kv_token_bytes / tp - free
    if missing > 0:
        return (
            f"{where}: KV of one prompt of {device.work.prompt} tokens over {_layers(layers)} is "
            f"{missing / GIB:.1f} GiB a GPU too large beside the weights ({of_memory})"
        )
    try:
        if RULES[phase](device, role, tp, [stages])[0][index] > 0:
            return None
    except UnknownDegree as error:
        return f"{where}: {error.message}"
    slo = device.model.slo
    budget = slo.decode_s if phase == "decode" else slo.prefill_s
    hop = float(device.hop_s(np.array([1.0]), stages)[0])
    if budget / stages <= hop:
        return (
            f"{where}: handing rows on takes all of the {_ms(budget / stages)} that a stage of {stages} has"
        )
    return (
        f"{where}: {_layers(layers)} take longer than the {_ms(budget / stages)} that a stage of {stages} "
        f"has, also for a single {'row' if phase == 'decode' else 'prompt'}"
    )


def unusable(device: Device, phase: Phase, count: int) -> str:
    """Why a node of `count` GPUs, of which T̂ has nothing but 0, holds not a single layer: of all degrees and
    roles the reason of the most promising, a middle layer (a whole model of one) at the widest degree."""
    shape, most = device.model.shape, min(count, device.able.max_tp)
    heads = math.gcd(shape.heads, shape.kv_heads)
    widest = max(t for t in range(1, most + 1) if count % t == 0 and heads % t == 0)
    role: Role = "mid" if device.layers > 1 else "only"
    found = refusal(device, phase, role, widest, 1, 2 if device.layers > 1 else 1)
    return found or f"{device.gpu.name} x{count}: no number of stages and layers meets the SLO"


def _layers(layers: int) -> str:
    return "1 layer" if layers == 1 else f"{layers} layers"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
