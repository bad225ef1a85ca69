from __future__ import annotations

from collections.abc import Callable

import pytest
from coral_engine_torch.engine import build
from coral_engine_torch.options import TorchOptions
from coral_engine_torch.runner import load as load_stage

from coral.hookspecs.engine import Engine
from coral.testing.engine import EngineContract
from coral.testing.generation import Load
from coral.types.stage import StageSpec


class TestContract(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return build(TorchOptions())

    @pytest.fixture(params=["llama", "gpt_oss"])
    def stage(self, request: pytest.FixtureRequest, stage_of: Callable[..., StageSpec]) -> StageSpec:
        return stage_of(request.param)

    @pytest.fixture
    def load(self) -> Load:
        return load_stage
