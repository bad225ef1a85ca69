"""The dtype of a checkpoint's weights, from the `quantization_config` of its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coral.errors import SourceError

METHODS: Mapping[str, str] = {
    "mxfp4": "mxfp4",
    "fp8": "float8",
    "fbgemm_fp8": "float8",
    "nvfp4": "nvfp4",
    "modelopt": "",
    "modelopt_fp4": "nvfp4",
    "awq": "",
    "gptq": "",
    "auto-round": "",
    "bitsandbytes": "",
    "compressed-tensors": "",
}
"""`quant_method` and the dtype it means; empty where other fields tell."""


def weight_dtype(config: Mapping[str, Any], where: str) -> str | None:
    """None where weights are not quantised. Raises SourceError naming a method or width that is not known."""
    section = config.get("quantization_config")
    if not isinstance(section, dict) or not section:
        return None
    method = str(section.get("quant_method"))
    if method not in METHODS:
        raise SourceError(
            f"{where}: quantization_config.quant_method {method!r} is not known",
            mend=f"known are: {', '.join(METHODS)}; or give the model's `shape` in the config",
        )
    return METHODS[method] or _by_width(section, method, where)


def _by_width(section: Mapping[str, Any], method: str, where: str) -> str:
    if method == "modelopt":
        told = str(section.get("quant_algo", "")).upper()
        found = {"FP8": "float8", "NVFP4": "nvfp4"}.get(told)
    elif method == "bitsandbytes":
        told = "load_in_4bit" if section.get("load_in_4bit") else "load_in_8bit"
        found = "int4" if section.get("load_in_4bit") else "int8"
    elif method == "compressed-tensors":
        groups = section.get("config_groups")
        told = _packed(groups if isinstance(groups, dict) else {})
        found = {"float 8": "float8", "float 4": "nvfp4", "int 8": "int8", "int 4": "int4"}.get(told)
    else:
        told = f"{section.get('bits')} bits"
        found = {4: "int4", 8: "int8"}.get(section.get("bits"))  # type: ignore[arg-type]  # None: not found
    if found is None:
        raise SourceError(f"{where}: quantization_config of {method} with {told or 'no width'} is not known")
    return found


def _packed(groups: Mapping[str, Any]) -> str:
    """Kind and bits of the first group that packs weights, as `int 4`."""
    for group in groups.values():
        kept = group.get("weights") if isinstance(group, dict) else None
        if isinstance(kept, dict):
            return f"{kept.get('type')} {kept.get('num_bits')}"
    return ""
