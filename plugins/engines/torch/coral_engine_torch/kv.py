"""Paged KV: a pool of block numbers, each sequence's table, and the cache tensor itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coral.errors import NoRoom


class BlockPool:
    """Which blocks are free. Blocks go out lowest first, and come back when their last holder lets go."""

    def __init__(self, blocks: int) -> None:
        self.total = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._holders: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` blocks, or NoRoom and none."""
        if count > len(self._free):
            raise NoRoom(
                f"{count} KV blocks are needed, {len(self._free)} of {self.total} are free",
                mend="release or preempt a request",
            )
        blocks = [self._free.pop() for _ in range(count)]
        self._holders.update(dict.fromkeys(blocks, 1))
        return blocks

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for blocks that are out."""
        for block in blocks:
            self._holders[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                del self._holders[block]
                self._free.append(block)


class KvCache:
    """One tensor `[layers, 2 (k, v), blocks, block_size, kv_heads, head_dim]`, keys after RoPE."""

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, 2, blocks, block_size, kv_heads, head_dim)
        self.block_size = block_size
        self.pool = BlockPool(blocks)
        self._data = _zeros(shape, dtype, device)
        self._used: set[int] = set()

    @property
    def bytes(self) -> int:
        return self._data.nbytes

    @property
    def dtype(self) -> torch.dtype:
        return self._data.dtype

    def take(self, tokens: int) -> list[int]:
        """Blocks for `tokens` tokens, cleared of what an earlier request left there; NoRoom and none."""
        blocks = self.pool.take(-(-tokens // self.block_size))
        if stale := [block for block in blocks if block in self._used]:
            self._data[:, :, torch.tensor(stale, device=self._data.device)] = 0
        self._used.update(blocks)
        return blocks

    def keys(self, layer: int) -> Tensor:
        """`[blocks, block_size, kv_heads, head_dim]`; `layer` counts from this stage's first."""
        return self._data[layer, 0]

    def values(self, layer: int) -> Tensor:
        return self._data[layer, 1]

    def read(self, layers: Sequence[int], slots: Tensor) -> Tensor:
        """A copy `[layers, 2 (k, v), slots, kv_heads, head_dim]`; slots count tokens over all blocks."""
        rows = self._rows(layers)
        if rows is not None:
            return rows.index_select(2, slots)
        return self._slots()[self._index(layers, slots)]

    def write(self, layers: Sequence[int], slots: Tensor, heads: slice, data: Tensor) -> None:
        """`data` `[layers, 2 (k, v), slots, heads, head_dim]` of some of the heads, on the cache's device."""
        rows = self._rows(layers)
        if rows is not None and data.shape[3] == rows.shape[3]:
            rows.index_copy_(2, slots, data)
        else:
            self._slots()[(*self._index(layers, slots), heads)] = data

    def _slots(self) -> Tensor:
        return self._data.view(*self._data.shape[:2], -1, *self._data.shape[4:])

    def _rows(self, layers: Sequence[int]) -> Tensor | None:
        """The slots of these layers where they follow one another; no copy."""
        follow = list(layers) == list(range(layers[0], layers[0] + len(layers)))
        return self._slots()[layers[0] : layers[0] + len(layers)] if follow else None

    def _index(self, layers: Sequence[int], slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        device = self._data.device
        which, pair = torch.tensor(layers, device=device), torch.arange(2, device=device)
        return which[:, None, None], pair[None, :, None], slots[None, None, :]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU zero pages that the kernel hands out when they are first written, not all at load."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)
