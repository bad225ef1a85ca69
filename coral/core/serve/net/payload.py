"""Whether a payload is what its header says: checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Sequence

from coral.core.serve.net.messages.data import Rows
from coral.core.serve.net.messages.handover import Kv

ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "float8": 1,
}
"""Bytes of one number, by the name of its dtype."""


def fault(header: Rows, payload_bytes: int) -> str | None:
    """What is wrong with a message of rows, or None."""
    rows, width = header.shape
    size = ITEM_BYTES.get(header.dtype)
    if size is None:
        return f"unknown dtype {header.dtype!r}"
    if rows < 1 or width < 1 or rows * width * size != payload_bytes:
        return f"{payload_bytes} bytes are not {rows}×{width} of {header.dtype}"
    if payload_bytes > LARGEST_PAYLOAD:
        return f"{payload_bytes} bytes are more than {LARGEST_PAYLOAD}"
    if any(part.n < 1 or part.start < 0 for part in header.parts):
        return "a part without rows"
    if sum(part.n for part in header.parts) != rows:
        return f"parts of {sum(part.n for part in header.parts)} rows, not {rows}"
    return None


LARGEST_PAYLOAD = 1 << 30
"""Bytes of one message's payload: nobody makes room for more, whatever a header says."""


def rows_bytes(header: Rows) -> int:
    """What the payload must be; 0 where the header says nothing sensible (`fault` says what)."""
    rows, width = header.shape
    return max(rows, 0) * max(width, 0) * ITEM_BYTES.get(header.dtype, 0)


def kv_bytes(header: Kv) -> list[int]:
    """Sizes of the payload's frames, as the header has them."""
    sizes = []
    for part in header.parts:
        tokens, heads, width = part.shape
        size = max(tokens, 0) * max(heads, 0) * max(width, 0) * ITEM_BYTES.get(part.dtype, 0)
        sizes += [size, size]
    return sizes


def kv_fault(header: Kv, frame_bytes: Sequence[int]) -> str | None:
    """What is wrong with a message of KV whose payload frames (K and V of each part) have these sizes,
    or None."""
    if not 0 <= header.start < header.end <= header.known or not header.parts:
        return f"tokens [{header.start}, {header.end}) of {header.known} in {len(header.parts)} parts"
    if sum(frame_bytes) > LARGEST_PAYLOAD:
        return f"{sum(frame_bytes)} bytes are more than {LARGEST_PAYLOAD}"
    if len(frame_bytes) != 2 * len(header.parts):
        return f"{len(frame_bytes)} frames of {len(header.parts)} parts"
    for number, part in enumerate(header.parts):
        size = ITEM_BYTES.get(part.dtype)
        if size is None:
            return f"unknown dtype {part.dtype!r}"
        tokens, heads, width = part.shape
        if min(part.layer, part.head_start, tokens) < 0 or min(heads, width) < 1:
            return f"layer {part.layer}: shape {part.shape} at head {part.head_start}"
        if part.token_start < header.start or part.token_start + tokens != header.end:
            return f"layer {part.layer}: {tokens} tokens at {part.token_start} do not end at {header.end}"
        wanted = tokens * heads * width * size
        for found in frame_bytes[2 * number : 2 * number + 2]:
            if found != wanted:
                return f"layer {part.layer}: {found} bytes are not {part.shape} of {part.dtype}"
    return None
