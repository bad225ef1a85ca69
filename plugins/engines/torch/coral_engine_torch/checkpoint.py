"""Reads single tensors of a safetensors checkpoint straight into their place, without a second copy.

The format (https://huggingface.co/docs/safetensors): 8 bytes little-endian length, a JSON header
`{name: {dtype, shape, data_offsets}}`, then the data. Nothing in it can execute.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import BinaryIO, Self

import torch
from msgspec import Struct
from torch import Tensor

from coral.errors import EngineError

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_HEADER = 100 << 20
_STAGING_BYTES = 16 << 20


class Entry(Struct, frozen=True):
    """Where a tensor lies: `offset` from the file's start."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


class Checkpoint:
    """All tensors of a model folder by name; a context. Files are opened when first read from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, BinaryIO] = {}
        self._entries: dict[str, Entry] = {}
        self.bytes_read = 0
        for file in self._files():
            self._index(file)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def read(self, name: str, into: Tensor) -> None:
        """Fill `into` (contiguous, same shape, any float dtype, any device) with the tensor `name`."""
        entry = self._entry(name)
        if tuple(into.shape) != entry.shape:
            raise EngineError(
                f"{self._folder / entry.file}: {name} has shape {entry.shape}, expected {tuple(into.shape)}",
                mend="config.json and the weights do not belong together; fetch the model again",
            )
        file = self._file(entry.file)
        file.seek(entry.offset)
        if into.dtype == entry.dtype and into.device.type == "cpu":
            self._fill(file, into.view(-1), name)
            return
        rows = into.view(entry.shape[0], -1)
        step = max(1, _STAGING_BYTES // max(1, rows.shape[1] * entry.dtype.itemsize))
        staging = torch.empty(min(step, rows.shape[0]), rows.shape[1], dtype=entry.dtype)
        for low in range(0, rows.shape[0], step):
            part = staging[: min(step, rows.shape[0] - low)]
            self._fill(file, part.view(-1), name)
            rows[low : low + len(part)].copy_(part)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _fill(self, file: BinaryIO, flat: Tensor, name: str) -> None:
        view = memoryview(flat.view(torch.uint8).numpy().data)
        while len(view):
            count = os.readv(file.fileno(), [view])
            if count == 0:
                raise EngineError(f"{file.name} ends within {name}", mend="fetch the model again")
            self.bytes_read += count
            view = view[count:]

    def _files(self) -> list[str]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            files = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            if any(Path(file).name != file for file in files):
                raise EngineError(f"{index} names files outside its folder", mend="fetch the model again")
            return files
        if (self._folder / "model.safetensors").is_file():
            return ["model.safetensors"]
        raise EngineError(
            f"{self._folder} holds no safetensors weights", mend="only safetensors checkpoints are read"
        )

    def _index(self, name: str) -> None:
        path = self._folder / name
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(_MAX_HEADER, size - 8):
                    raise ValueError(f"a header of {length} bytes in a file of {size}")
                header = json.loads(file.read(length))
            for tensor, entry in header.items():
                if tensor != "__metadata__" and entry["dtype"] in _DTYPES:
                    low, high = entry["data_offsets"]
                    shape = tuple(int(n) for n in entry["shape"])
                    dtype = _DTYPES[entry["dtype"]]
                    if (
                        high - low != math.prod(shape) * dtype.itemsize
                        or not 0 <= low <= high <= size - 8 - length
                    ):
                        raise ValueError(f"{tensor} does not lie within the file")
                    self._entries[tensor] = Entry(name, dtype, shape, 8 + length + low)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{path} is damaged: {error}", mend="fetch the model again") from error

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise EngineError(
                f"{self._folder} has no float tensor {name}",
                mend="the checkpoint is quantised or of another family",
            )
        return self._entries[name]

    def _file(self, name: str) -> BinaryIO:
        if name not in self._open:
            self._open[name] = (self._folder / name).open("rb", buffering=0)
        return self._open[name]
