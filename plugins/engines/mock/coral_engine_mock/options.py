"""What an `engine: {use: mock}` section may say."""

from __future__ import annotations

from pydantic import Field

from coral.hookspecs.options import Duration, Options


class MockCost(Options):
    """Coefficients of `coral.types.step.AffineStepCost`, in seconds."""

    overhead_s: float = Field(default=0.0, ge=0)
    layer_s: float = Field(default=0.0, ge=0)
    token_s: float = Field(default=0.0, ge=0)
    attend_s: float = Field(default=0.0, ge=0)
    embed_token_s: float = Field(default=0.0, ge=0)
    head_s: float = Field(default=0.0, ge=0)
    logit_row_s: float = Field(default=0.0, ge=0)


class MockOptions(Options):
    vocab: int = Field(default=32_000, ge=2, description="tokens are in [0, vocab)")
    tokens: tuple[int, ...] = Field(
        default=(), description="these in turn, by position, instead of a hash of the sequence"
    )
    block_size: int = Field(default=16, ge=1, description="tokens in one KV block")
    kv_blocks: int = Field(default=1024, ge=1, description="KV blocks of a node")
    width: int = Field(default=8, ge=1, description="numbers in a hidden row")
    step_tokens: int = Field(default=512, ge=1, description="most tokens in one step of a worker")
    step_requests: int = Field(default=64, ge=1, description="most requests in one step of a worker")
    load: Duration = Field(default=0.0, description="how long loading takes")
    cost: MockCost = Field(default_factory=MockCost, description="what a step costs")
    fail_node: str = Field(default="", description="the node that the faults are for; empty = every node")
    fail_at_load: str = Field(default="", description="fail to load, with this message")
    fail_at_step: int = Field(default=0, ge=0, description="fail in this step, counted from 1; 0 = never")
    fail_at_export: int = Field(
        default=0, ge=-1, description="fail to export KV this time, counted from 1; 0 = never, -1 = always"
    )
    fail_at_import: int = Field(
        default=0, ge=-1, description="fail to import KV this time, counted from 1; 0 = never, -1 = always"
    )
    hang_at_step: int = Field(
        default=0, ge=0, description="never return from this step, counted from 1; 0 = never"
    )
    diary: str = Field(
        default="",
        description="a folder, there already, in which every node writes what it opens and releases",
    )
