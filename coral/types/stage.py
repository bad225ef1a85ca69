"""What a worker is told to hold, what goes through it, and what it says of itself."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from coral.types.hardware import NodeType
from coral.types.request import TokenLogprob

Buffer = Any
"""Any object with the buffer protocol (Python 3.11 has no type for it), or with `__dlpack__`."""


class StageSpec(Struct, frozen=True, kw_only=True):
    """One node's part of one instance: everything an engine needs to load it.

    `source` is a local folder with config.json and safetensors. `memory_bytes` is the memory of ONE
    device that the engine may use in all, weights, KV and workspace. `options` are the engine
    plugin's validated options as plain JSON; `args` pass through to the engine as they are.
    """

    instance: str
    generation: int
    node: str
    stage: int
    stages: int
    first_layer: int
    end_layer: int
    layers_total: int
    source: str
    model: str
    engine: str
    dtype: str
    node_type: NodeType
    devices: tuple[int, ...]
    device_kind: Literal["cuda", "rocm", "cpu"]
    threads: int
    memory_bytes: int
    max_model_len: int
    max_step_tokens: int
    max_step_requests: int
    step_target_s: float = 0.0
    """Longest a step of stage 0 should take while sequences decode; 0 = as long as it likes."""
    options: dict[str, Any] = {}
    args: dict[str, Any] = {}

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1


class KvCapacity(Struct, frozen=True, kw_only=True):
    """Known after load. A request of t tokens takes ceil(t / block_size) blocks of this node."""

    blocks: int
    block_size: int
    bytes: int


class HiddenRows(Struct, frozen=True, kw_only=True, eq=False):
    """Hidden states `[rows, width]`, C-contiguous. `dtype` is a name (`bfloat16` is a name and bytes).

    `data` is host memory in `device="cpu"` (any object with the buffer protocol), or an object with
    `__dlpack__` where the rows lie on a device.
    """

    dtype: str
    shape: tuple[int, int]
    data: Buffer
    device: str = "cpu"


class Chunk(Struct, frozen=True, kw_only=True, eq=False):
    """Positions `[start, start + n)` of one request in a step: token ids at stage 0, rows later."""

    request: str
    start: int
    n: int
    token_ids: tuple[int, ...] | None = None
    rows: HiddenRows | None = None


class Sampled(Struct, frozen=True, kw_only=True):
    """The last stage's answer for a chunk that completed what is known of its sequence.

    `position` counts generated tokens from 0. `finish` is set when the token ends the sequence:
    "stop" (a stop id; the id is in `token`) or "length".
    """

    request: str
    position: int
    token: int
    finish: Literal["stop", "length"] | None = None
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class StepResult(Struct, frozen=True, kw_only=True, eq=False):
    """`hidden` holds the rows of all chunks in the order they were given (None at the last stage);
    `sampled` is empty except at the last stage."""

    hidden: HiddenRows | None = None
    sampled: tuple[Sampled, ...] = ()


class EngineStats(Struct, frozen=True, kw_only=True):
    """What a node has done since its stage was loaded.

    An engine leaves `seconds` and `wait_seconds` to the worker it runs in.
    """

    free_blocks: int
    total_blocks: int
    requests: int
    steps: int
    step_seconds: float
    """Seconds spent in steps since load."""
    weight_bytes: int = 0
    load_seconds: float = 0.0
    bytes_read: int = 0
    seconds: float = 0.0
    """Since the worker was connected: it steps, it waits, and the rest is its own work."""
    wait_seconds: float = 0.0
    """Spent waiting: nothing to run, or no credit for what would come of it."""


KvKind = Literal["full", "window", "latent", "state"]


class KvSection(Struct, frozen=True, kw_only=True, eq=False):
    """KV of one layer in the canonical layout: K then V, `[tokens, kv_heads, head_dim]`, after RoPE.

    `kind`: `full`, or `window` (token range = what the window still holds); later `latent`, `state`.
    """

    layer: int
    kind: KvKind
    dtype: str
    shape: tuple[int, int, int]
    token_start: int
    head_start: int = 0
    k: Buffer = b""
    v: Buffer = b""
    scales: Buffer | None = None


class KvPiece(Struct, frozen=True, kw_only=True, eq=False):
    """`tokens`: the position up to which it reaches, the same in all its sections."""

    request: str
    tokens: int
    sections: tuple[KvSection, ...]


class InstanceSpec(Struct, frozen=True, kw_only=True):
    """What a scheduler is told: its instance, the node ids of each stage with their weights.

    `stages[s]` lists (StageSpec, weight) of every node of stage s; weights are the placement's
    node throughputs.
    """

    instance: str
    generation: int
    model: str
    phase: str
    stages: tuple[tuple[tuple[StageSpec, float], ...], ...]
    expected_output_tokens: int
    max_model_len: int
    max_waiting: int = 256
    """Admission limit: requests that may wait for room at the scheduler."""
    kv_lease_s: float = 60.0
    """How long a request that is handed over holds its blocks on either side without anything happening."""
