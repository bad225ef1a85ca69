"""A GGUF file's tensors, dequantised one at a time into one fp32 safetensors file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from coral.errors import SourceError

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


def name_of(name: str) -> str:
    """The name in a Hugging Face checkpoint. KeyError where there is none."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise KeyError(name)
    layer = f"model.layers.{match['layer']}." if match["layer"] else ""
    return f"{layer}{_NAMES[match['part']]}.{match['kind']}"


def write_safetensors(path: Path, reader: Any, config: dict[str, Any], target: Path) -> None:
    """Streams every tensor of `reader`, never holding more than one in fp32. Raises SourceError."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in reader.tensors:
        try:
            name = name_of(tensor.name)
        except KeyError as error:
            raise SourceError(
                f"{path}: unknown tensor {tensor.name}", mend="take a safetensors checkpoint"
            ) from error
        shape = [int(n) for n in reversed(tensor.shape)]
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in reader.tensors:
            values = _dequantise(path, tensor)
            part = tensor.name.split(".")[-2]
            if config["model_type"] == "llama" and part in heads:
                values = _unpermute(values, heads[part])
            file.write(np.ascontiguousarray(values, dtype="<f4").data)


def _dequantise(path: Path, tensor: Any) -> NDArray[np.float32]:
    try:
        values: NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise SourceError(
            f"{path}: {tensor.name} is {tensor.tensor_type.name}, which cannot be read"
        ) from error
    return values


def _unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp interleaves the two halves that RoPE turns together; Hugging Face keeps them apart."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(2, 1).reshape(weight.shape)
