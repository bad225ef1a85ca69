"""What an `engine: {use: torch}` section may say."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TorchOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str | None = Field(
        default=None, description="interpreter of the workers; default: the coordinator's own"
    )
    block_size: int = Field(default=16, ge=1, le=256, description="tokens in one KV block")
    kv_blocks: int | None = Field(
        default=None, ge=1, description="KV blocks of a node; default: as many as its memory has room for"
    )
    step_tokens: int = Field(default=512, ge=1, description="most tokens in one step of a worker")
    step_requests: int = Field(default=64, ge=1, description="most requests in one step of a worker")
