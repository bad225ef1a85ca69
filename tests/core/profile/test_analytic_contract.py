"""The `analytic` profiler passes the suite that every profiler does, also beyond its usual model."""

from __future__ import annotations

import pytest

from coral.core.profile import catalogue
from coral.core.profile.analytic import AnalyticProfiler, build
from coral.core.profile.options import AnalyticOptions
from coral.testing.profiler import ProfilerContract
from coral.types.hardware import Gpu
from coral.types.model import ModelShape, MoeShape


class TestAnalytic(ProfilerContract):
    @pytest.fixture
    def profiler(self) -> AnalyticProfiler:
        return build(AnalyticOptions())


class TestAnalyticWithExpertsAndWindows(TestAnalytic):
    @pytest.fixture
    def gpu(self) -> Gpu:
        return catalogue.gpu("H100")

    @pytest.fixture
    def model(self) -> ModelShape:
        return ModelShape(
            architecture="GptOssForCausalLM",
            layers=24,
            hidden=2880,
            heads=64,
            kv_heads=8,
            head_dim=64,
            intermediate=2880,
            vocab=201088,
            max_positions=131072,
            moe=MoeShape(experts=32, experts_per_token=4, intermediate=2880),
            windows=(128, 0) * 12,
            weight_dtype="mxfp4",
        )
