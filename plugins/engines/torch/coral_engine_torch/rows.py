"""Hidden rows as they cross a process boundary, and float buffers under their dtype's name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coral.errors import EngineError
from coral.types.stage import Buffer, HiddenRows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BITS = {2: torch.int16, 4: torch.int32}  # numpy knows no bfloat16: floats travel as integers of that width


def dtype_of(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise EngineError(f"the torch engine knows no dtype {name!r}", mend=f"it runs {', '.join(DTYPES)}")
    return DTYPES[name]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bits(tensor: Tensor) -> NDArray[np.generic]:
    """A CPU tensor's memory as an integer array of the same shape; no copy."""
    array: NDArray[np.generic] = tensor.view(_BITS[tensor.dtype.itemsize]).numpy()
    return array


def to_buffer(tensor: Tensor) -> memoryview:
    """The tensor's bytes in host memory, C order; no copy where it lies there already."""
    return bits(tensor.detach().contiguous().cpu()).data.cast("B")


def fill(tensor: Tensor, data: Buffer, what: str) -> None:
    """Copy a buffer of `tensor`'s dtype and size into it (CPU, contiguous); EngineError on a wrong size."""
    target = bits(tensor)
    source = np.frombuffer(data, dtype=np.uint8)
    if source.nbytes != target.nbytes:
        raise EngineError(f"{what} has {source.nbytes} bytes, expected {target.nbytes}")
    target[...] = source.view(target.dtype).reshape(target.shape)


def pack(x: Tensor) -> HiddenRows:
    """`[rows, width]` for the next stage, in host memory."""
    rows, width = x.shape
    return HiddenRows(dtype=name_of(x.dtype), shape=(rows, width), data=to_buffer(x))


def join(parts: Sequence[tuple[str, int, HiddenRows | None]], width: int, dtype: torch.dtype) -> Tensor:
    """One CPU tensor `[sum of n, width]` of the chunks (request, n, rows) in order.

    Raises EngineError where a chunk has no rows or rows of another shape or dtype.
    """
    out = torch.empty(sum(n for _, n, _ in parts), width, dtype=dtype)
    low = 0
    for request, n, rows in parts:
        if rows is None or rows.shape != (n, width) or rows.dtype != name_of(dtype):
            found = "nothing" if rows is None else f"{rows.dtype} {rows.shape}"
            raise EngineError(
                f"chunk of {request}: expected {name_of(dtype)} {(n, width)} hidden rows, got {found}"
            )
        data = rows.data if rows.device == "cpu" else to_buffer(torch.utils.dlpack.from_dlpack(rows.data))
        fill(out[low : low + n], data, f"chunk of {request}")
        low += n
    return out
