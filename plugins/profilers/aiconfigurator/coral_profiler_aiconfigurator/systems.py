"""GPUs that there are tables of, and how the tables call them and their number formats."""

from __future__ import annotations

from msgspec import Struct

from coral.errors import ProfileError
from coral.types.hardware import Gpu
from coral.types.model import ModelShape

SYSTEMS = {
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "A100-80GB": "a100_sxm",
    "L40S": "l40s",
}
"""SXM modules but for the L40S. Kernels of an A100 were measured on the one of 80 GB."""

ERRORS = {"h100_sxm": 0.12, "h200_sxm": 0.10, "b200_sxm": 0.13, "a100_sxm": 0.20, "l40s": 0.20}
"""Median of |predicted / measured - 1| over public whole steps (`python -m benchmarks.tables` of Coral's
repository): H100, H200 and B200 over NVIDIA's end-to-end times, H100 and A100 also over Splitwise's of an
engine of 2023, bounded by its host. Of the L40S nobody published whole steps: the worst of the others."""

SIXTEEN_BITS = ("bfloat16",)
"""Matrix products in float16 take as long as in bfloat16: the same tensor cores, the same bytes."""

FLOAT8 = {
    "static": ("fp8_static", "fp8", "fp8_block"),
    "tensor": ("fp8", "fp8_block"),
    "block": ("fp8_block", "fp8"),
}
"""By the scales of float8, in the order in which they are tried."""

BLACKWELL = frozenset({"b200_sxm"})
"""Multiplies four bits with eight; others unpack four bits to sixteen."""

EXPERTS_ALONE = "mxfp4"
"""The format that only experts have, as gpt-oss is made; the rest of the layer is in the activations'."""


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


def formats(shape: ModelShape, system: str, float8: str) -> Formats:
    """Raises ProfileError for formats that no table is of."""
    low = ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4") if system in BLACKWELL else ("w4a16_mxfp4",)
    names = {
        "bfloat16": SIXTEEN_BITS,
        "float16": SIXTEEN_BITS,
        "float8": FLOAT8[float8],
        "nvfp4": ("nvfp4",) if system in BLACKWELL else ("nvfp4_wo", "w4a16_nvfp4"),
        "int4": ("int4_wo",),
        "int8": ("int8_wo",),
    }
    experts = low if shape.weight_dtype == EXPERTS_ALONE else names.get(shape.weight_dtype, ())
    experts = tuple(name for name in experts if name not in ("fp8_static", "int8_wo"))
    alone = shape.moe is not None and shape.weight_dtype == EXPERTS_ALONE
    dense = names.get(shape.activation_dtype if alone else shape.weight_dtype, ())
    kv = {"float8": "fp8", "bfloat16": "bfloat16", "float16": "bfloat16"}.get(shape.kv_dtype)
    if not dense or (shape.moe and not experts) or kv is None:
        raise ProfileError(
            f"no measured kernels for {shape.architecture} with weights in {shape.weight_dtype} "
            f"and KV in {shape.kv_dtype}",
            mend="measured: bfloat16, float16, float8, nvfp4, int4 of experts, mxfp4 of experts; "
            "KV in bfloat16, float16, float8",
        )
    return Formats(dense=dense, experts=experts, kv=kv)
