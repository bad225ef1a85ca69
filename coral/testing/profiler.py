"""The contract of profilers."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from coral.errors import UnknownDegree
from coral.hookspecs.profiler import Profiler, StepCost
from coral.testing.contract import Contract
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import StepParts, StepWork

WORKS = (
    StepWork(prefill_tokens=512, prefill_context=512 * 256, logit_rows=1),
    StepWork(decode_rows=16, decode_context=16 * 1024, logit_rows=16),
    StepWork(prefill_tokens=128, prefill_context=128 * 64, decode_rows=8, decode_context=4096, logit_rows=8),
)


class ProfilerContract(Contract):
    """Needs the fixture `profiler`. `model`, `gpu`, `engine` and `dtype` name a combination it knows: a
    Llama-like model of 16 layers on an L40S where not overridden."""

    engine = "torch"
    dtype = "bfloat16"

    @pytest.fixture
    def profiler(self) -> Profiler:
        self._undefined("profiler")

    @pytest.fixture
    def model(self) -> ModelShape:
        return ModelShape(
            architecture="LlamaForCausalLM",
            layers=16,
            hidden=2048,
            heads=32,
            kv_heads=8,
            head_dim=64,
            intermediate=8192,
            vocab=128256,
            max_positions=131072,
        )

    @pytest.fixture
    def gpu(self) -> Gpu:
        return Gpu(
            name="L40S",
            memory_bytes=48 * 1024**3,
            memory_bytes_per_s=864e9,
            flops={"bfloat16": 362e12, "float16": 362e12, "float32": 91.6e12},
            link_bytes_per_s=32e9,
            link_latency_s=1e-5,
        )

    @pytest.fixture
    def cost(self, profiler: Profiler, model: ModelShape, gpu: Gpu) -> StepCost:
        return profiler.step_cost(model, gpu, self.engine, dtype=self.dtype, measure=None)

    def test_says_where_it_comes_from(self, cost: StepCost) -> None:
        assert cost.profiler
        assert cost.engine == self.engine
        assert cost.engine_version
        assert cost.provenance in ("measured", "interpolated", "analytic")
        assert 0 <= cost.error < 10

    @pytest.mark.parametrize("work", WORKS)
    def test_steps_take_time(self, cost: StepCost, work: StepWork) -> None:
        for first, last in ((False, False), (True, False), (False, True), (True, True)):
            seconds = cost.step_s(work, 4, first=first, last=last)
            assert math.isfinite(seconds)
            assert 0 < seconds < 1000

    @pytest.mark.parametrize("work", WORKS)
    def test_more_layers_take_no_less(self, cost: StepCost, work: StepWork) -> None:
        times = [cost.step_s(work, layers, first=False, last=False) for layers in range(1, 17)]
        assert times == sorted(times)
        assert times[-1] > times[0]

    @pytest.mark.parametrize("work", WORKS)
    @pytest.mark.parametrize("name", StepWork.__struct_fields__)
    def test_more_work_takes_no_less(self, cost: StepCost, work: StepWork, name: str) -> None:
        more = msgspec.structs.replace(work, **{name: getattr(work, name) * 2 + 8})
        assert cost.step_s(more, 4, first=True, last=True) >= cost.step_s(work, 4, first=True, last=True)

    def test_embedding_and_head_take_no_less(self, cost: StepCost) -> None:
        for work in WORKS:
            middle = cost.step_s(work, 4, first=False, last=False)
            assert cost.step_s(work, 4, first=True, last=False) >= middle
            assert cost.step_s(work, 4, first=False, last=True) >= middle

    @pytest.mark.parametrize("work", WORKS)
    def test_the_parts_are_the_step(self, cost: StepCost, work: StepWork) -> None:
        for first, last in ((False, False), (True, False), (False, True), (True, True)):
            parts = cost.step_parts(work, 4, first=first, last=last)
            each = {name: getattr(parts, name) for name in StepParts.__struct_fields__}
            assert all(math.isfinite(part) and part >= 0 for part in each.values()), each
            assert parts.step_s == pytest.approx(cost.step_s(work, 4, first=first, last=last), rel=1e-6)
            assert first or parts.embedding_s == 0
            assert last or parts.logits_s == 0
            assert parts.allreduce_s == 0

    @pytest.mark.parametrize("tp", [2, 4])
    def test_steps_of_several_devices(self, cost: StepCost, tp: int) -> None:
        """A degree that nothing is known of raises UnknownDegree, and nothing else."""
        for work in WORKS:
            try:
                parts = cost.step_parts(work, 4, first=True, last=True, tp=tp)
            except UnknownDegree:
                with pytest.raises(UnknownDegree):
                    cost.step_s(work, 4, first=True, last=True, tp=tp)
                continue
            seconds = cost.step_s(work, 4, first=True, last=True, tp=tp)
            assert 0 < seconds < 1000
            assert parts.step_s == pytest.approx(seconds, rel=1e-6)
            assert all(getattr(parts, name) >= 0 for name in StepParts.__struct_fields__)
            assert cost.step_s(work, 5, first=True, last=True, tp=tp) >= seconds

    def test_arrays_give_what_numbers_give(self, cost: StepCost) -> None:
        """Only where the cost says that it is elementwise."""
        fields = StepWork.__struct_fields__
        columns: Any = {n: np.array([getattr(w, n) for w in WORKS])[:, None] for n in fields}
        layers: Any = np.arange(1, 17)
        if not cost.elementwise:
            return
        for first, last in ((True, False), (False, True)):
            together: Any = cost.step_s(StepWork(**columns), layers, first=first, last=last)
            together = np.broadcast_to(together, (len(WORKS), 16))
            for i, work in enumerate(WORKS):
                alone = [cost.step_s(work, int(j), first=first, last=last) for j in layers]
                assert together[i].tolist() == pytest.approx(alone, rel=1e-9)

    def test_memory(self, cost: StepCost, model: ModelShape) -> None:
        def held(layers: int, first: bool = False, last: bool = False) -> int:
            return cost.weight_bytes(layers, first=first, last=last, tied=model.tied_embeddings)

        sizes = [held(layers) for layers in range(1, 17)]
        assert sizes == sorted(sizes)
        assert sizes[0] > 0
        assert held(4, first=True) > held(4)
        assert held(4, last=True) > held(4)
        assert cost.kv_token_bytes > 0
        assert cost.fixed_bytes >= 0

    def test_the_same_question_has_the_same_answer(
        self, profiler: Profiler, model: ModelShape, gpu: Gpu, cost: StepCost
    ) -> None:
        again = profiler.step_cost(model, gpu, self.engine, dtype=self.dtype, measure=None)
        for work in WORKS:
            assert again.step_s(work, 3, first=True, last=True) == cost.step_s(work, 3, first=True, last=True)
