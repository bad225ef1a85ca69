"""The options as the worker's half reads them: plain JSON, without pydantic."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from coral.errors import EngineError
from coral.types.step import AffineStepCost


class CostSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    overhead_s: float = 0.0
    layer_s: float = 0.0
    token_s: float = 0.0
    attend_s: float = 0.0
    embed_token_s: float = 0.0
    head_s: float = 0.0
    logit_row_s: float = 0.0

    def step_cost(self, gpu: str) -> AffineStepCost:
        return AffineStepCost(
            gpu=gpu,
            engine="mock",
            engine_version="mock",
            provenance="measured",
            error=0.0,
            **msgspec.structs.asdict(self),
        )


class MockSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See `coral_engine_mock.options.MockOptions`; `load` is in seconds here."""

    vocab: int = 32_000
    tokens: tuple[int, ...] = ()
    block_size: int = 16
    kv_blocks: int = 1024
    width: int = 8
    step_tokens: int = 512
    step_requests: int = 64
    load: float = 0.0
    cost: CostSettings = CostSettings()
    fail_node: str = ""
    fail_at_load: str = ""
    fail_at_step: int = 0
    fail_at_export: int = 0
    fail_at_import: int = 0
    hang_at_step: int = 0
    diary: str = ""

    @classmethod
    def of(cls, options: dict[str, Any]) -> MockSettings:
        """Raises EngineError naming what is wrong."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise EngineError(f"options of the mock engine: {error}") from error
