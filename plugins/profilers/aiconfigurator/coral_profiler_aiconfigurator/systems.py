"""GPUs that there are tables of, and how the tables call them and their number formats."""

from __future__ import annotations

from msgspec import Struct

from coral.errors import ProfileError
from coral.types.hardware import Gpu
from coral.types.model import DTYPE_BYTES, ModelShape

SYSTEMS = {
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "A100-80GB": "a100_sxm",
    "L40S": "l40s",
}
"""SXM modules but for the L40S. Kernels of an A100 were measured on the one of 80 GB."""

NAMES = {"bfloat16": ("bfloat16",), "float16": ("bfloat16",)}
"""Matrix products in float16 take as long as in bfloat16: the same tensor cores, the same bytes."""

FLOAT8 = {
    "static": ("fp8_static", "fp8", "fp8_block"),
    "tensor": ("fp8", "fp8_block"),
    "block": ("fp8_block", "fp8"),
}
"""By the scales of float8. Experts have no kernels of their own for static scales."""

MXFP4 = ("w4a16_mxfp4", "w4a16_mxfp4_cutlass", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8_trtllm")
"""Kernels for experts in mxfp4, the first that was measured is taken."""


class Formats(Struct, frozen=True, kw_only=True):
    """What the tables call the number formats of a model: each the names to try, in this order."""

    dense: tuple[str, ...]
    experts: tuple[str, ...]
    kv: str


def system_of(gpu: Gpu) -> str:
    """Raises ProfileError for a GPU without measured kernels, naming those that have them."""
    if gpu.kind != "cuda" or gpu.name not in SYSTEMS:
        raise ProfileError(
            f"no measured kernels of {gpu.name!r}", mend=f"measured GPUs: {', '.join(sorted(SYSTEMS))}"
        )
    return SYSTEMS[gpu.name]


def formats(shape: ModelShape, float8: str) -> Formats:
    """Of a quantised model with experts only those are quantised where it is mxfp4 (as gpt-oss is made).

    Raises ProfileError for formats that no table is of.
    """
    names = {**NAMES, "float8": FLOAT8[float8]}
    experts = MXFP4 if shape.weight_dtype == "mxfp4" else names.get(shape.weight_dtype, ())
    experts = tuple(name for name in experts if name != "fp8_static")
    quantised = DTYPE_BYTES[shape.weight_dtype] < 2.0
    dense = names.get(shape.activation_dtype if quantised and shape.moe else shape.weight_dtype, ())
    kv = {"float8": "fp8", "bfloat16": "bfloat16", "float16": "bfloat16"}.get(shape.kv_dtype)
    if not dense or (shape.moe and not experts) or kv is None:
        raise ProfileError(
            f"no measured kernels for {shape.architecture} with weights in {shape.weight_dtype} "
            f"and KV in {shape.kv_dtype}",
            mend="measured: bfloat16, float16, float8, and mxfp4 of experts; KV in bfloat16, float16, float8",
        )
    return Formats(dense=dense, experts=experts, kv=kv)
