"""One test per equation of the throughput rules, each against the same rule written out by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from coral.core.profile import catalogue
from coral.core.profile.device import Device, Hop
from coral.core.profile.rates import GROUPS, RULES, batches, chunk_groups, chunk_sizes
from coral.core.profile.throughput import throughput_table
from coral.core.profile.workload import Workload
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, NodeType
from coral.types.model import Demand, ModelShape, ModelSpec, Phase, RequestClass, Role, Slo
from coral.types.reservation import ReservationRule, blocks
from coral.types.step import AffineStepCost, StepWork

STAGED: tuple[Role, ...] = ("first", "mid", "last")
ROLES_OF: tuple[tuple[int, Role], ...] = ((1, "only"), (3, "first"), (3, "mid"), (3, "last"))
HOP = Hop(latency_s=1e-4, bytes_per_s=1e9)
GPU = catalogue.gpu("L40S")
COST = AffineStepCost(
    gpu="L40S",
    engine="e",
    engine_version="1",
    provenance="measured",
    error=0.1,
    overhead_s=1e-3,
    layer_s=8e-4,
    token_s=1.2e-6,
    attend_s=4e-10,
    embed_token_s=1e-7,
    head_s=1.5e-3,
    logit_row_s=2e-6,
    allreduce_s=2e-5,
    allreduce_token_s=2e-8,
    layer_bytes=800 << 20,
    embed_bytes=1 << 30,
    head_bytes=1 << 30,
    kv_token_bytes=4096,
    fixed_bytes=1 << 30,
)
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    layers=12,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    max_positions=131072,
)


def spec(seed: int = 0, **slo: float) -> ModelSpec:
    rng = np.random.default_rng(seed)
    share = float(rng.uniform(0.2, 0.8))
    classes = (
        RequestClass(
            input_tokens=float(rng.integers(50, 900)), output_tokens=float(rng.integers(1, 200)), share=share
        ),
        RequestClass(
            input_tokens=float(rng.integers(900, 6000)),
            output_tokens=float(rng.integers(50, 600)),
            share=1 - share,
        ),
    )
    prompt = float(rng.integers(1000, 7000))
    return ModelSpec(
        name="m",
        shape=SHAPE,
        slo=Slo(
            prefill_s=slo.get("prefill_s", float(rng.uniform(0.1, 1.5))),
            decode_s=slo.get("decode_s", float(rng.uniform(0.01, 0.12))),
        ),
        demand=Demand(requests_per_s=1.0, classes=classes, input_tokens_quantile=prompt),
        phases=("mixed",),
        engine="e",
    )


def able(most: int = 2048, rows: int = 24) -> EngineCapabilities:
    return EngineCapabilities(
        version="1", block_size=16, dtypes=(), max_step_tokens=most, max_step_requests=rows, max_tp=8
    )


def device(model: ModelSpec, cost: StepCost = COST, most: int = 2048, rows: int = 24) -> Device:
    return Device(model, GPU, cost, able(most, rows), HOP)


def _step_s(work: StepWork, layers: int, role: Role, tp: int) -> float:
    return COST.step_s(work, layers, first=role in ("first", "only"), last=role in ("last", "only"), tp=tp)


def _hop_s(rows: float, stages: int) -> float:
    return 0.0 if stages == 1 else HOP.latency_s + rows * 4096 * 2 / HOP.bytes_per_s


def _by_hand_mixed(model: ModelSpec, layers: int, role: Role, stages: int, most: int, rows: int) -> float:
    """The docstring's rule, chunk by chunk."""
    work, best = Workload(model, 16), 0.0
    for b in range(1, rows + 1):
        steady = b * work.in_ / work.out
        for q in chunk_sizes(work.prompt, most):
            if q < steady or q + b > most:
                continue
            steps, done = [], 0
            while done < work.prompt:
                chunk = min(q, work.prompt - done)
                rest = q - chunk
                attended = chunk * (done + chunk / 2) + rest * min(rest, work.prompt) / 2
                one = StepWork(
                    prefill_tokens=q,
                    prefill_context=attended,
                    decode_rows=b,
                    decode_context=b * work.decode_attended,
                    logit_rows=b + q / work.in_,
                )
                steps.append(_step_s(one, layers, role, 1) + _hop_s(q + b, stages))
                done += int(chunk)
            if max(steps) > model.slo.decode_s / stages or sum(steps) > model.slo.prefill_s / stages:
                continue
            one = StepWork(
                prefill_tokens=steady,
                prefill_context=steady * work.prompt_attended,
                decode_rows=b,
                decode_context=b * work.decode_attended,
                logit_rows=b + steady / work.in_,
            )
            best = max(best, b / work.out / _step_s(one, layers, role, 1))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_mixed_sums_the_steps_of_a_prompt_and_bears_the_worst_of_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = spec(seed, prefill_s=float(rng.uniform(1, 8)), decode_s=float(rng.uniform(0.02, 0.2)))
    stages, most = int(rng.integers(1, 4)), int(rng.choice([512, 2048, 8192]))
    role: Role = "only" if stages == 1 else "last"
    dev = device(model, most=most, rows=20)
    found = RULES["mixed"](dev, role, 1, [stages])[0]
    limit = dev.memory_rate("mixed", role, 1)
    for j in range(1, 13):
        exact = max(0.0, min(_by_hand_mixed(model, j, role, stages, most, 20), limit[j - 1]))
        assert found[j - 1] <= exact * (1 + 1e-9)  # groups of chunks never promise more
        assert found[j - 1] >= exact * 0.85


def test_mixed_is_exact_where_a_prompt_has_few_chunks() -> None:
    found = 0
    for seed in range(12):
        model = spec(seed, prefill_s=3.0, decode_s=0.3)
        quantile = min(model.demand.input_tokens_quantile, 1500.0)
        model = msgspec.structs.replace(
            model, demand=msgspec.structs.replace(model.demand, input_tokens_quantile=quantile)
        )
        rate = RULES["mixed"](device(model, most=256, rows=16), "only", 1, [1])[0]
        limit = device(model, most=256, rows=16).memory_rate("mixed", "only", 1)
        for j in (1, 5, 12):
            by_hand = max(0.0, min(_by_hand_mixed(model, j, "only", 1, 256, 16), limit[j - 1]))
            assert rate[j - 1] <= by_hand * (1 + 1e-9)
            found += by_hand > 0
    assert found > 3


@pytest.mark.parametrize("prompt", [1, 7, 100, 1500, 8000])
def test_groups_of_chunks_cover_a_prompt(prompt: int) -> None:
    size = chunk_sizes(prompt, 2048)
    groups = list(chunk_groups(prompt, size))
    count = np.array([count for count, _ in groups])
    assert (count.sum(axis=0) == np.ceil(prompt / size)).all()
    attended = np.sum([count * size * mean for count, mean in groups], axis=0)
    chunks = np.ceil(prompt / size)
    fill = chunks * size - prompt
    exact = prompt**2 / 2 + fill * np.minimum(fill, prompt) / 2
    few = chunks <= GROUPS
    assert attended[few] == pytest.approx(exact[few])
    assert (attended >= exact * (1 - 1e-12)).all()
    assert (attended <= exact * 1.15 + size**2).all()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tp", [1, 4])
def test_decode_is_the_best_batch_within_its_share_of_the_slo(seed: int, tp: int) -> None:
    model = spec(seed)
    work, dev = Workload(model, 16), device(model)
    for stages, role in ROLES_OF:
        found = RULES["decode"](dev, role, tp, [stages])[0]
        limit = dev.memory_rate("decode", role, tp)
        for j in range(1, 13):
            best = 0.0
            for b in range(1, 25):
                one = StepWork(decode_rows=b, decode_context=b * work.decode_attended, logit_rows=b)
                seconds = _step_s(one, j, role, tp)
                if seconds + _hop_s(b, stages) <= model.slo.decode_s / stages:
                    best = max(best, b / seconds)
            assert found[j - 1] == pytest.approx(max(0.0, min(best, limit[j - 1])))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [512, 8192])
def test_prefill_covers_the_whole_prompt_at_the_quantile(seed: int, most: int) -> None:
    model = spec(seed)
    work, dev = Workload(model, 16), device(model, most=most)
    for stages, role in ROLES_OF:
        found = RULES["prefill"](dev, role, 1, [stages])[0]
        limit = dev.memory_rate("prefill", role, 1)
        for j in range(1, 13):
            best = 0.0
            for b in range(1, 17):

                def spent(tokens: float, attended: float, b: int = b) -> float:
                    steps = math.ceil(tokens / most)
                    one = StepWork(
                        prefill_tokens=tokens / steps, prefill_context=attended / steps, logit_rows=b / steps
                    )
                    return steps * _step_s(one, j, role, 1)  # noqa: B023  # called at once

                longest = work.prompt + (b - 1) * work.in_
                attended = work.prompt**2 / 2 + (b - 1) * work.in_ * work.prompt_attended
                if spent(longest, attended) <= model.slo.prefill_s / stages - _hop_s(longest, stages):
                    best = max(best, b * work.in_ / spent(b * work.in_, b * work.in_ * work.prompt_attended))
            assert found[j - 1] == pytest.approx(max(0.0, min(best, limit[j - 1])))


@pytest.mark.parametrize("phase", ["prefill", "decode", "mixed"])
def test_memory_holds_the_requests_in_flight_by_littles_law(phase: Phase) -> None:
    model = spec(3)
    work, dev = Workload(model, 16), device(model)
    for tp in (1, 2):
        limit = dev.memory_rate(phase, "mid", tp)
        for j in range(1, 13):
            held = 0.0
            for c in model.demand.classes:
                in_s = model.slo.prefill_s if phase != "decode" else 0.0
                out_s = model.slo.decode_s * c.output_tokens if phase != "prefill" else 0.0
                kept = work.held_by(c.input_tokens, 1 if phase == "prefill" else c.output_tokens)
                held += c.share * (in_s + out_s) * kept / work.units(phase)
            free = GPU.memory_bytes - COST.fixed_bytes - j * COST.layer_bytes / tp
            assert limit[j - 1] == pytest.approx(max(0.0, free * tp / (j * 4096 * held)))


def test_what_a_request_holds_is_the_mean_of_what_the_scheduler_reserves() -> None:
    """Walked token by token with the scheduler's own rule: also where an output is longer than expected."""
    model = spec(1)
    work = Workload(model, 16)
    rule = ReservationRule(expected_output_tokens=math.ceil(work.out))
    for prompt, output in ((10, 1), (10, 50), (333, 400), (2000, 1777), (5, 0)):
        total, held = prompt + max(1, output), 0
        spent = 0.0
        for known in range(prompt, total):
            if known == prompt:
                held = rule.reserve(known, total - known)
            elif known >= held:
                held = rule.extend(held, total)
            spent += blocks(held, 16) * 16
        assert work.held_by(prompt, output) == pytest.approx(spent / max(1, output))


def test_the_least_slo_and_one_request_bound_memory() -> None:
    """A device that cannot hold one request of the prompt that the SLO is stated for serves nothing."""
    model = spec(2)
    need = Workload(model, 16).longest("decode")(math.inf) * 4096 * 12
    tight = msgspec.structs.replace(
        GPU, memory_bytes=int(COST.fixed_bytes + 12 * COST.layer_bytes + 2 * COST.embed_bytes + need)
    )
    short = msgspec.structs.replace(tight, memory_bytes=tight.memory_bytes - 9)
    for gpu, serves in ((tight, True), (short, False)):
        rate = Device(model, gpu, COST, able(), HOP).memory_rate("decode", "only", 1)[11]
        assert bool(rate > 0) is serves


def test_the_hop_carries_hidden_rows_in_the_activation_dtype() -> None:
    dev = device(spec())
    assert dev.hop_s(np.array([100.0]), 2) == pytest.approx(1e-4 + 100 * 4096 * 2 / 1e9)
    assert dev.hop_s(np.array([100.0]), 1) == 0
    wide = msgspec.structs.replace(SHAPE, activation_dtype="float32")
    dev = device(msgspec.structs.replace(spec(), shape=wide))
    assert dev.hop_s(np.array([100.0]), 2) == pytest.approx(1e-4 + 100 * 4096 * 4 / 1e9)


def test_roles_pay_for_what_they_hold() -> None:
    """The first stage embeds, the last has the head, a single stage both; memory and time alike."""
    dev = device(spec(decode_s=0.05))
    free = {role: dev.free_bytes(role, 1)[3] for role in (*STAGED, "only")}
    assert free["mid"] - free["first"] == COST.embed_bytes
    assert free["mid"] - free["last"] == COST.head_bytes
    assert free["mid"] - free["only"] == COST.embed_bytes + COST.head_bytes
    first, mid, last = (RULES["decode"](dev, role, 1, [2])[0] for role in STAGED)
    assert (first <= mid + 1e-12).all()
    assert (last <= mid + 1e-12).all()
    assert last[0] < mid[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8])
def test_a_node_of_k_gpus_is_the_best_of_k_over_t_slices_of_degree_t(count: int) -> None:
    model = spec(5, decode_s=0.03)
    kinds = (NodeType("L40S", count),)

    def costs(_: ModelSpec, gpu: Gpu) -> StepCost:
        return COST

    def capable(_: ModelSpec, gpu: Gpu) -> EngineCapabilities:
        return able()

    table = throughput_table(model, "decode", kinds, {"L40S": GPU}, costs, capable, HOP, 2)
    dev = device(model)
    for r, role in enumerate(STAGED):
        for j in range(1, 13):
            best = 0.0
            for t in (t for t in (1, 2, 4, 8) if count % t == 0):
                rates = RULES["decode"](dev, role, t, [2])[0]
                best = max(best, rates[j - 1 :].max() * count / t)
            assert table.rate[1, r, j - 1, 0] == pytest.approx(best)
            t = int(table.tp[1, r, j - 1, 0])
            assert count % t == 0


def test_batches_are_close_to_each_other() -> None:
    sizes = batches(1000, apart=0.02)
    assert sizes[:32].tolist() == list(range(1, 33))
    assert sizes[-1] == 1000
    assert (np.diff(sizes[32:]) <= 0.02 * sizes[33:] + 1).all()
