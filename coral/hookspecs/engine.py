"""Execution engines: hold layers `[a, b)` of a model on a node and run steps over ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from coral.hookspecs import hookspec
from coral.hookspecs.component import EngineComponent
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.request import GenerateRequest
from coral.types.stage import Chunk, EngineStats, KvCapacity, KvPiece, StepResult


class Launch(Struct, frozen=True, kw_only=True):
    """How to start a process of the engine: `argv` complete, `env` added to the parent's.

    `preload`: modules that the process imports anyway, safe to fork after (they start no thread and open no
    device). Where given, and `argv` is of the form (interpreter, `-m`, module, …), the process may be forked
    from one that has imported them, which takes milliseconds in place of seconds. Device variables of `env`
    (CUDA_VISIBLE_DEVICES and the like) are set after the fork, all others before the imports.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    preload: tuple[str, ...] = ()


class EngineCapabilities(Struct, frozen=True, kw_only=True):
    """`refusal` says why this engine cannot serve the model on that GPU; None = it can.

    `block_size` is tokens in a KV block; `max_step_tokens`, `max_step_requests` bound a step of a worker.
    """

    version: str
    block_size: int
    dtypes: tuple[str, ...]
    max_step_tokens: int
    max_step_requests: int
    max_tp: int = 1
    reads_weights: bool = True
    """False where the engine needs the model's config and tokenizer only (the mock engine)."""
    refusal: str | None = None


class Engine(Protocol):
    """The coordinator's half: light, imports no engine."""

    def capabilities(self, shape: ModelShape, gpu: Gpu) -> EngineCapabilities:
        """What it can do with this model on this GPU; never raises for one that it cannot serve."""
        ...

    def launch(self, worker_argv: Sequence[str], *, threads: int, devices: Sequence[int]) -> Launch:
        """Start a worker in the engine's own environment.

        `worker_argv` is the worker's module and arguments, without interpreter (`-m`, `coral.…`).
        """
        ...

    def measure(self, shape: ModelShape, gpu: Gpu, dtype: str) -> Launch | None:
        """A process that times real steps of layers of this shape and prints `Measurements` as JSON
        on its standard output; None where the engine cannot be measured on this machine."""
        ...


class Lease(Protocol):
    """KV that is being read by someone else; its blocks stay until `done` or `cancel`."""

    @property
    def piece(self) -> KvPiece: ...

    def done(self) -> None: ...

    def cancel(self) -> None: ...


class StageRunner(Protocol):
    """The worker's half: one stage in one engine. Called from one thread.

    A request is opened before its first chunk arrives; its chunks arrive in order of position.
    """

    def capacity(self) -> KvCapacity:
        """Blocks and block size; known after load, constant."""
        ...

    def open(self, request: GenerateRequest, reserve: int) -> None:
        """Reserve KV for `reserve` tokens of a new request, or raise NoRoom and reserve nothing.

        `request.generated` is what was generated before (elsewhere, or before a preemption):
        penalties, logprobs and max_tokens tell it from the prompt, and sampling goes on exactly.
        """
        ...

    def extend(self, request: str, tokens: int) -> None:
        """Reserve up to `tokens` tokens in all, or raise NoRoom and change nothing."""
        ...

    def step(self, chunks: Sequence[Chunk]) -> StepResult:
        """One forward over a ragged batch, at most one chunk per request.

        At the last stage a token is sampled for each chunk that completes what is known of its
        sequence (prompt + generated so far), and becomes known here. At stage 0 it becomes known by
        `feed`. Raises EngineError where a chunk is out of order or beyond the reservation.
        """
        ...

    def feed(self, request: str, token: int) -> None:
        """Stage 0 learns what the last stage sampled."""
        ...

    def export_kv(self, request: str, layers: tuple[int, int], tokens: tuple[int, int]) -> Lease:
        """KV of layers and tokens `[a, b)` in the canonical layout; may run while steps go on.

        Raises EngineError for layers that are not held here and tokens that have not run.
        """
        ...

    def import_kv(self, request: str, pieces: Sequence[KvPiece]) -> None:
        """Take KV of an opened request that has run no chunk here.

        The pieces together cover tokens `[imported so far, b)` of all layers of this stage, of a windowed
        layer those that tokens from b on may attend to; sections of other layers are ignored. The next
        call goes on at b, and so does the next chunk. On return the buffers are no longer needed.
        Raises EngineError, and changes nothing, where something is missing or does not fit.
        """
        ...

    def resume(self, request: str, tokens: Sequence[int]) -> None:
        """Tokens that were sampled elsewhere become known as generated, before the next chunk.

        Raises EngineError where not all that was known before has been imported or has run here.
        """
        ...

    def release(self, requests: Sequence[str]) -> None:
        """Free all KV of these requests, at once unless leased; unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Counts since load; cheap, it is asked every second while steps run."""
        ...

    def close(self) -> None:
        """Free everything; called once, with requests still open where the worker ends early."""
        ...


class EngineHooks:
    @hookspec
    def coral_engines(self) -> list[EngineComponent]:  # type: ignore[empty-body]
        """Engines this plugin offers.

        Called once, when plugins are loaded, in the coordinator and in every worker. `build(options)`
        returns an `Engine`; `load(stage)` runs in the worker and returns a `StageRunner`.
        """
