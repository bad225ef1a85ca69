"""The table T̂: monotone, within budgets and memory, by the rules in `throughput`'s docstring."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import Struct

from coral.core.profile import catalogue
from coral.core.profile.calibration import Efficiency
from coral.core.profile.device import Hop
from coral.core.profile.roofline import RooflineStepCost
from coral.core.profile.throughput import ROLES, ThroughputTable, degrees, throughput_table
from coral.core.profile.windows import layer_tokens, worst_full_layers
from coral.core.profile.workload import Workload
from coral.errors import UnknownDegree
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import Demand, ModelShape, ModelSpec, MoeShape, Phase, RequestClass, Slo
from coral.types.program import Floats
from coral.types.step import StepWork

SHAPE = ModelShape(
    architecture="Qwen3ForCausalLM",
    layers=24,
    hidden=2560,
    heads=20,
    kv_heads=10,
    head_dim=128,
    intermediate=9728,
    vocab=151_936,
    max_positions=32_768,
)
MOE = msgspec.structs.replace(
    SHAPE,
    heads=64,
    kv_heads=8,
    head_dim=64,
    moe=MoeShape(experts=32, experts_per_token=4, intermediate=2880),
    windows=tuple(128 if layer % 2 == 0 else 0 for layer in range(24)),
)
HOP = Hop(latency_s=1e-4, bytes_per_s=1e9)
PHASES: tuple[Phase, ...] = ("prefill", "decode", "mixed")
KINDS = tuple(NodeType(gpu, count) for gpu in ("L40S", "L4", "H100") for count in (1, 2, 4))


def model(shape: ModelShape = SHAPE, prefill_s: float = 1.2, decode_s: float = 0.06) -> ModelSpec:
    return ModelSpec(
        name="m",
        shape=shape,
        slo=Slo(prefill_s=prefill_s, decode_s=decode_s),
        demand=Demand(
            requests_per_s=1,
            classes=(
                RequestClass(input_tokens=400, output_tokens=100, share=0.7),
                RequestClass(input_tokens=1500, output_tokens=300, share=0.3),
            ),
            input_tokens_quantile=1500,
        ),
        phases=PHASES,
        engine="e",
    )


def cost(spec: ModelSpec, gpu: Gpu) -> StepCost:
    return RooflineStepCost(
        shape=spec.shape, gpu=gpu, engine="e", engine_version="1", efficiency=Efficiency()
    )


def able(_: ModelSpec, gpu: Gpu) -> EngineCapabilities:
    return EngineCapabilities(
        version="1",
        block_size=16,
        dtypes=(),
        max_step_tokens=2048,
        max_step_requests=256,
        max_tp=4,
        refusal="too old" if gpu.name == "T4" else None,
    )


def table(
    phase: Phase, spec: ModelSpec | None = None, kinds: tuple[NodeType, ...] = KINDS
) -> ThroughputTable:
    return throughput_table(spec or model(), phase, kinds, catalogue.gpus(), cost, able, HOP, 4)


class AloneOnly(Struct):
    """Knows a GPU alone, and nothing of more of them together."""

    one: StepCost

    def __getattr__(self, name: str) -> Any:
        return getattr(self.one, name)

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        if tp > 1:
            raise UnknownDegree(f"tensor parallel {tp} was not measured")
        return self.one.step_s(work, layers, first=first, last=last)


@pytest.mark.parametrize("phase", PHASES)
def test_a_degree_that_nothing_is_known_of_is_left_out(phase: Phase) -> None:
    def alone(spec: ModelSpec, gpu: Gpu) -> StepCost:
        return AloneOnly(cost(spec, gpu))

    kinds = (NodeType("H100", 1), NodeType("H100", 2))
    found = throughput_table(model(), phase, kinds, catalogue.gpus(), alone, able, HOP, 2)
    assert (found.tp == 1).all()
    assert found.rate[..., 1] == pytest.approx(2 * found.rate[..., 0])


def test_a_node_that_only_an_unknown_degree_could_use_says_so() -> None:
    def alone(spec: ModelSpec, gpu: Gpu) -> StepCost:
        return AloneOnly(cost(spec, gpu))

    large = msgspec.structs.replace(SHAPE, layers=2, intermediate=4_000_000)
    kinds = (NodeType("L40S", 2),)
    long = model(large, decode_s=1.0)
    assert table("decode", long, kinds).tp.max() == 2
    found = throughput_table(long, "decode", kinds, catalogue.gpus(), alone, able, HOP, 2)
    assert not found.rate.any()
    assert "tensor parallel 2 was not measured" in found.refused["L40S x2"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("shape", [SHAPE, MOE])
def test_more_layers_more_stages_and_outer_roles_never_do_better(phase: Phase, shape: ModelShape) -> None:
    rate = table(phase, model(shape)).rate
    assert rate.shape == (4, 4, 24, 9)
    assert (np.diff(rate, axis=2) <= 1e-12).all()
    first, mid, last, only = (ROLES.index(role) for role in ("first", "mid", "last", "only"))
    assert (np.diff(rate[1:, mid], axis=0) <= 1e-12).all()
    assert (rate[1:, first] <= rate[1:, mid] + 1e-12).all()
    assert (rate[1:, last] <= rate[1:, mid] + 1e-12).all()
    assert (rate[0, :3] == 0).all()
    assert (rate[1:, only] == 0).all()
    assert rate[0, only].max() > 0
    assert (rate[1:, last] < rate[1:, mid]).any()


@pytest.mark.parametrize("phase", PHASES)
def test_a_longer_slo_never_does_worse_where_memory_is_ample(phase: Phase) -> None:
    kinds = (NodeType("H200", 1),)
    gpu = msgspec.structs.replace(catalogue.gpu("H200"), memory_bytes=10_000_000_000_000)

    def rate(spec: ModelSpec) -> Floats:
        return throughput_table(spec, phase, kinds, {"H200": gpu}, cost, able, HOP, 4).rate

    short, long = rate(model(prefill_s=0.5, decode_s=0.03)), rate(model(prefill_s=1.0, decode_s=0.06))
    assert (long >= short - 1e-12).all()


def test_decode_is_within_budget_and_memory() -> None:
    spec, gpu = model(), catalogue.gpu("L40S")
    rate = table("decode").rate[1, ROLES.index("mid"), :, 0]
    work = Workload(spec, 16)
    step = cost(spec, gpu)
    for layers, found in enumerate(rate, start=1):
        free = (
            gpu.memory_bytes
            - step.fixed_bytes
            - step.weight_bytes(layers, first=False, last=False, tied=False)
        )
        in_memory = free / (layers * step.kv_token_bytes * work.held("decode")(math.inf))
        best = 0.0
        for rows in range(1, 257):
            one = StepWork(decode_rows=rows, decode_context=rows * work.decode_attended, logit_rows=rows)
            seconds = step.step_s(one, layers, first=False, last=False)
            if seconds + HOP.latency_s + rows * 2560 * 2 / HOP.bytes_per_s <= 0.06 / 2:
                best = max(best, rows / seconds)
        exact = max(0.0, min(best, in_memory))
        assert found <= exact * (1 + 1e-9)
        assert found >= exact * 0.94  # batches above 32 are tried 6 % apart


def test_prefill_covers_the_prompt_that_the_slo_is_stated_for() -> None:
    """1,500 tokens in one step of at most 2,048; with 512 a step it takes three."""
    spec, gpu = model(), catalogue.gpu("L4")
    step = cost(spec, gpu)
    rate = table("prefill").rate[2, ROLES.index("mid"), :, KINDS.index(NodeType("L4", 1))]
    for layers, found in enumerate(rate, start=1):
        prompt = StepWork(prefill_tokens=1500, prefill_context=1500**2 / 2, logit_rows=1)
        seconds = step.step_s(prompt, layers, first=False, last=False)
        hop = HOP.latency_s + 1500 * 2560 * 2 / HOP.bytes_per_s
        assert (found > 0) == (seconds <= 1.2 / 3 - hop)


def test_mixed_serves_both_phases_at_one_rate() -> None:
    """At x requests/s the steady step is no longer than what it has to do allows."""
    spec, gpu = model(), catalogue.gpu("H100")
    step, work = cost(spec, gpu), Workload(model(), 16)
    x = table("mixed").rate[0, ROLES.index("only"), 23, KINDS.index(NodeType("H100", 1))]
    assert x > 0
    slow = 0.0
    for rows in np.linspace(1, 256, 400):
        prompt = rows * work.in_ / work.out
        one = StepWork(
            prefill_tokens=prompt,
            prefill_context=prompt * work.prompt_attended,
            decode_rows=rows,
            decode_context=rows * work.decode_attended,
            logit_rows=rows + prompt / work.in_,
        )
        slow = max(slow, rows / work.out / step.step_s(one, 24, first=True, last=True))
    assert x <= slow


def of_lengths(prompt: float, output: float, prefill_s: float) -> ModelSpec:
    classes = (RequestClass(input_tokens=prompt, output_tokens=output),)
    demand = Demand(requests_per_s=1, classes=classes, input_tokens_quantile=prompt)
    return msgspec.structs.replace(model(prefill_s=prefill_s, decode_s=2.0), demand=demand)


def test_mixed_serves_prompts_of_more_tokens_than_a_step_has() -> None:
    """4,000 prompt tokens to one output token, 2,048 a step: a decode row in about every second step."""
    gpu, long = KINDS.index(NodeType("H100", 1)), of_lengths(4000.0, 1.0, 10.0)
    x = table("mixed", long).rate[0, ROLES.index("only"), 23, gpu]
    alone = table("prefill", long).rate[0, ROLES.index("only"), 23, gpu] / 4000
    assert 0.8 * alone < x < alone


def test_short_prompts_fill_a_step() -> None:
    """40 tokens each: more than 16 of them go into a step of 2,048, as many as wait for the weights once."""
    short, gpu = of_lengths(40.0, 100.0, 1.0), catalogue.gpu("H100")
    step, attended = cost(short, gpu), 40 * 20.0
    rate = table("prefill", short).rate[0, ROLES.index("only"), 23, KINDS.index(NodeType("H100", 1))]

    def of(prompts: int) -> float:
        work = StepWork(prefill_tokens=40 * prompts, prefill_context=attended * prompts, logit_rows=prompts)
        return 40 * prompts / step.step_s(work, 24, first=True, last=True)

    best = max(of(prompts) for prompts in range(1, 52))
    assert best > 1.2 * of(16)
    assert best * 0.99 < rate <= best * (1 + 1e-9)


def test_a_node_is_the_best_of_slices_and_tensor_parallel() -> None:
    found = table("decode", model(decode_s=0.009))  # one L40S cannot read all weights in 9 ms
    one, two, four = (KINDS.index(NodeType("L40S", n)) for n in (1, 2, 4))
    assert (found.rate[..., two] >= 2 * found.rate[..., one] - 1e-9).all()
    assert (found.rate[..., four] >= 2 * found.rate[..., two] - 1e-9).all()
    assert set(np.unique(found.tp[..., one])) == {1}
    wide = found.rate[..., two] > 2 * found.rate[..., one] + 1e-9
    assert wide.any()
    assert (found.tp[..., two][wide] == 2).all()


def test_heads_limit_tensor_parallel() -> None:
    """10 KV heads: TP 1, 2, 5, 10 divide them (Phi-4: no TP4 or TP8)."""
    assert degrees(SHAPE, 8, 8) == [1, 2, 5]
    assert degrees(MOE, 8, 8) == [1, 2, 4, 8]
    assert degrees(MOE, 8, 2) == [1, 2]


def test_a_refused_gpu_serves_nothing_and_is_not_profiled() -> None:
    def profiled(spec: ModelSpec, gpu: Gpu) -> StepCost:
        assert gpu.name != "T4"
        return cost(spec, gpu)

    kinds = (NodeType("L4", 1), NodeType("T4", 1))
    found = throughput_table(model(), "decode", kinds, catalogue.gpus(), profiled, able, HOP, 3)
    assert found.rate[..., 0].max() > 0
    assert found.rate[..., 1].max() == 0


def test_windows_count_at_the_worst_position() -> None:
    windows = (128, 0, 128, 0, 0, 128)
    assert worst_full_layers(windows, 6).tolist() == [0, 1, 2, 2, 3, 3, 3]
    shape = msgspec.structs.replace(SHAPE, layers=6, windows=windows)
    held = layer_tokens(shape, lambda cap: min(cap, 1000.0))
    for j in range(7):
        runs = [windows[a : a + j] for a in range(7 - j)]
        assert held[j] == max(sum(min(window or 1000, 1000) for window in run) for run in runs)


@pytest.mark.parametrize("seed", range(25))
def test_kv_of_a_pipeline_is_limited_by_its_tightest_stage(seed: int) -> None:
    """Uneven cards and layers: memory allows what the least of the stages does, never a total."""
    rng = np.random.default_rng(seed)
    spec = model(prefill_s=1e3, decode_s=1e3)
    stages = int(rng.integers(2, 4))
    cut = np.sort(rng.choice(np.arange(1, 24), stages - 1, replace=False))
    layers = np.diff([0, *cut, 24])
    cards = rng.choice(["L4", "L40S", "H100"], stages)
    found, by_hand = [], []
    for s in range(stages):
        role = "first" if s == 0 else "last" if s == stages - 1 else "mid"
        gpu = catalogue.gpu(str(cards[s]))
        kinds = (NodeType(gpu.name, 1),)
        rate = table("decode", spec, kinds).rate[stages - 1, ROLES.index(role), layers[s] - 1, 0]
        step = cost(spec, gpu)
        free = gpu.memory_bytes - step.fixed_bytes
        free -= step.weight_bytes(int(layers[s]), first=s == 0, last=s == stages - 1, tied=False)
        tokens = free / (layers[s] * step.kv_token_bytes)
        found.append(rate)
        by_hand.append(tokens / Workload(spec, 16).held("decode")(math.inf))
    assert min(found) == pytest.approx(min(by_hand), rel=1e-9)


def test_a_16_gb_and_a_32_gb_card_take_an_uneven_cut() -> None:
    """KV of a pipeline is the least over stages of free bytes / (layers x bytes per layer and token): the cut
    that gives the larger card twice the layers is accepted, and holds more than an even one."""
    spec = model(msgspec.structs.replace(SHAPE, layers=36), prefill_s=1e3, decode_s=1e3)
    small, large = (catalogue.gpu(name) for name in ("V100", "V100-32GB"))
    assert 14 < small.memory_bytes / 2**30 < 16 < 30 < large.memory_bytes / 2**30 < 32
    kinds = (NodeType(small.name, 1), NodeType(large.name, 1))
    rate = table("decode", spec, kinds).rate[1]
    first, last = rate[ROLES.index("first"), :, 0], rate[ROLES.index("last"), :, 1]

    def least(layers: int) -> float:
        """Output tokens/s of all cards together where the small one holds `layers` layers."""
        tokens = []
        for gpu, held, role in ((small, layers, "first"), (large, 36 - layers, "last")):
            step = cost(spec, gpu)
            free = gpu.memory_bytes - step.fixed_bytes
            free -= step.weight_bytes(held, first=role == "first", last=role == "last", tied=False)
            tokens.append(max(free, 0) / (held * step.kv_token_bytes))
        return min(tokens) / Workload(spec, 16).held("decode")(math.inf)

    found = [min(first[j - 1], last[36 - j - 1]) for j in range(1, 36)]
    assert found == pytest.approx([least(j) for j in range(1, 36)])
    best = int(np.argmax(found)) + 1
    assert best < 18
    assert found[best - 1] > 1.3 * found[17] > 0
