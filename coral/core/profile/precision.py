"""In which dtype a GPU multiplies, and how its weights lie in memory: what stands in for what it lacks."""

from __future__ import annotations

from msgspec import Struct

from coral.types.hardware import Gpu
from coral.types.model import DTYPE_BYTES, ModelShape

_LOW = {"float8": "float8", "int8": "int8", "nvfp4": "float4"}
"""Weights that are multiplied in their own precision; int4 is unpacked on the way, and mxfp4 is where there
are no products of 4 bits (there it meets rows of 8 bits)."""


class Precision(Struct, frozen=True, kw_only=True):
    flops: float
    """Peak FLOP/s of the products; 0 where the GPU's figures name no dtype that could do."""
    flops_16: float
    """The same at 16 bits (32 where the model has 32), for attention and the output head."""
    low: bool
    """Whether products are of 8 bits or fewer."""
    weight_dtype: str
    """How weights lie in memory."""
    stand_in: str = ""
    """What was put in another's place, in words; empty where nothing was."""


def precision(gpu: Gpu, shape: ModelShape) -> Precision:
    """float16 stands in where a GPU has no bfloat16. Weights of 8 bits or fewer that it cannot multiply are
    unpacked to 16 bits on the way; before bfloat16 (compute capability 8.0) there are no kernels for that,
    and they are unpacked in memory."""
    active = shape.activation_dtype
    wide = next((name for name in (active, "float16", "float32") if name in gpu.flops), "")
    stands = [f"{wide} for {active}"] if wide and wide != active else []
    quantised = DTYPE_BYTES[shape.weight_dtype] < 2.0
    own = _LOW.get(shape.weight_dtype, "")
    if shape.weight_dtype == "mxfp4" and "float4" in gpu.flops:
        own = "float8"
    weight = shape.weight_dtype
    if quantised and own not in gpu.flops:
        if "bfloat16" not in gpu.flops and gpu.kind != "cpu":
            weight = wide or active
            stands.append(f"weights of {shape.weight_dtype} unpacked to {weight} in memory")
        elif own:
            stands.append(f"{wide} products for {own}")
    low = quantised and own in gpu.flops
    peak = gpu.flops.get(wide, 0.0)
    return Precision(
        flops=gpu.flops[own] if low else peak,
        flops_16=peak,
        low=low,
        weight_dtype=weight,
        stand_in="; ".join(stands),
    )
