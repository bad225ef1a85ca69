"""What an `engine: {use: torch}` section may say."""

from __future__ import annotations

from pydantic import Field

from coral.hookspecs.options import Options


class TorchOptions(Options):
    block_size: int = Field(default=16, ge=1, le=256)
    """Tokens in one KV block."""
    kv_blocks: int | None = Field(default=None, ge=1)
    """KV blocks of every node; as many as its memory has room for where not given."""
