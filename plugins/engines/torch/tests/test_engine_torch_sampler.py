from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from coral_engine_torch.noise import exponentials, stream
from coral_engine_torch.sampler import sample
from coral_engine_torch.sequence import Sequence
from torch import Tensor

from coral.errors import EngineError
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Sampled

VOCAB = 50


def sequence(
    sampling: Sampling, generated: tuple[int, ...] = (), prompt: tuple[int, ...] = (1, 2)
) -> Sequence:
    request = GenerateRequest(id="r", model="m", prompt_ids=prompt, sampling=sampling)
    return Sequence(request, [], 99, generated=list(generated))


def one(logits: Tensor, sampling: Sampling, generated: tuple[int, ...] = ()) -> Sampled:
    return sample(logits[None], [sequence(sampling, generated)], 1000)[0]


def row(seed: int = 0) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def drawn(logits: Tensor, sampling: Sampling, n: int = 4000) -> Counter[int]:
    """Tokens drawn under n seeds, all in one batch."""
    settings = [
        sequence(
            Sampling(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                min_p=sampling.min_p,
                seed=seed,
            )
        )
        for seed in range(n)
    ]
    return Counter(s.token for s in sample(logits.expand(n, -1), settings, 1000))


def test_streams_are_fixed_for_ever() -> None:
    """SplitMix64 from 0 gives the published first outputs; replays depend on it."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    expected = [-math.log(((value >> 11) + 0.5) * 2.0**-53) for value in published]
    assert exponentials([0], 3, torch.device("cpu"))[0].tolist() == pytest.approx(expected, rel=1e-14)
    assert stream(2**64 + 5, 3) == stream(5, 3)
    assert stream(-1, 0) == stream(2**64 - 1, 0)
    assert len({stream(seed, position) for seed in range(60) for position in range(60)}) == 3600


def test_exponentials_have_their_moments() -> None:
    numbers = exponentials([stream(seed, 7) for seed in range(50)], 2000, torch.device("cpu"))
    assert float(numbers.mean()) == pytest.approx(1, abs=0.02)
    assert float(numbers.var()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = row()
    expected = torch.softmax(logits / temperature, -1)
    counts = drawn(logits, Sampling(temperature=temperature))
    for token in range(VOCAB):
        p = float(expected[token])
        assert abs(counts[token] / 4000 - p) < 5 * math.sqrt(p / 4000) + 1e-3


def test_temperature_zero_takes_the_most_likely_whatever_the_filters() -> None:
    assert one(row(), Sampling(temperature=0.0, top_p=0.1, top_k=3, seed=9)).token == int(row().argmax())


def test_top_k_leaves_the_k_most_likely() -> None:
    assert set(drawn(row(), Sampling(temperature=5.0, top_k=4))) == set(row().topk(4).indices.tolist())


def test_top_p_leaves_the_fewest_that_reach_it() -> None:
    ranked = torch.softmax(row(), -1).sort(descending=True)
    for top_p in (0.3, 0.6, 0.9):
        n = int((ranked.values.cumsum(-1) < top_p).sum()) + 1
        assert set(drawn(row(), Sampling(top_p=top_p))) <= set(ranked.indices[:n].tolist())
    assert set(drawn(row(), Sampling(top_p=0.0), 50)) == {int(row().argmax())}


def test_top_p_counts_within_what_top_k_leaves() -> None:
    logits = torch.log(torch.tensor([0.4, 0.2, 0.2, 0.1, 0.1]))
    assert set(drawn(logits, Sampling(top_k=2, top_p=0.6), 500)) == {0}  # 0.4 of 0.6 is 0.67
    assert set(drawn(logits, Sampling(top_k=2, top_p=0.7), 500)) == {0, 1}


def test_min_p_leaves_what_is_near_the_best() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    assert set(drawn(logits, Sampling(min_p=0.25), 1000)) == {0, 1, 2}


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = torch.stack([row(i) for i in range(6)])
    settings = [
        Sampling(temperature=0.9, seed=1),
        Sampling(temperature=0.0),
        Sampling(temperature=1.5, top_p=0.8, seed=3),
        Sampling(temperature=1.5, top_k=5, seed=3, logprobs=2),
        Sampling(temperature=0.7, seed=7, presence_penalty=1.0),
        Sampling(temperature=2.0, min_p=0.05, seed=2),
    ]
    together = sample(logits, [sequence(s, (4, 4)) for s in settings], 1000)
    assert together == [one(logits[i], s, (4, 4)) for i, s in enumerate(settings)]


def test_rounding_moves_hardly_any_draw() -> None:
    logits = torch.zeros(5000)
    settings = [sequence(Sampling(seed=seed)) for seed in range(300)]
    noisy = logits + 1e-5 * torch.randn(300, 5000, generator=torch.Generator().manual_seed(0))
    before, after = sample(logits.expand(300, -1), settings, 99), sample(noisy, settings, 99)
    assert sum(a != b for a, b in zip(before, after, strict=True)) <= 1


def test_positions_draw_apart() -> None:
    sampling = Sampling(temperature=3.0, seed=5)
    assert len({one(row(), sampling, (0,) * n).token for n in range(30)}) > 5


def test_penalties_and_bias_move_logits_as_openai_says() -> None:
    logits = torch.zeros(VOCAB)
    logits[7], logits[8] = 2.0, 1.5
    assert one(logits, Sampling(temperature=0.0)).token == 7
    assert one(logits, Sampling(temperature=0.0, presence_penalty=0.6), (7,)).token == 8
    assert one(logits, Sampling(temperature=0.0, frequency_penalty=0.3), (7,)).token == 7
    assert one(logits, Sampling(temperature=0.0, frequency_penalty=0.3), (7, 7)).token == 8
    assert one(logits, Sampling(temperature=0.0, logit_bias={7: -100.0})).token == 8
    assert one(logits, Sampling(temperature=0.0, logit_bias={30: 100.0, 10_000: 5.0})).token == 30
    in_prompt = sequence(Sampling(temperature=0.0, repetition_penalty=1.5), prompt=(7,))
    assert sample(logits[None], [in_prompt], 99)[0].token == 8
    spared = sequence(Sampling(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0), prompt=(7,))
    assert sample(logits[None], [spared], 99)[0].token == 7, "a prompt's tokens count for repetition only"


def test_repetition_penalty_lowers_negative_logits_too() -> None:
    logits = torch.full((VOCAB,), -5.0)
    logits[3], logits[4] = -1.0, -1.2
    assert one(logits, Sampling(temperature=0.0, repetition_penalty=1.3), (3,)).token == 4


def test_logprobs_are_the_models_own() -> None:
    logits = row()
    sampling = Sampling(temperature=0.3, top_k=2, logit_bias={5: 50.0}, logprobs=3)
    found = one(logits, sampling)
    expected = torch.log_softmax(logits, -1)
    assert found.token == 5
    assert found.logprob == pytest.approx(float(expected[5]), abs=1e-6)
    assert [t.token for t in found.top] == expected.topk(3).indices.tolist()
    assert [t.logprob for t in found.top] == pytest.approx(expected.topk(3).values.tolist())


def test_stop_ids_wait_for_min_tokens() -> None:
    logits = torch.zeros(VOCAB)
    logits[2], logits[9] = 5.0, 4.0
    sampling = Sampling(temperature=0.0, stop_ids=(2,), min_tokens=2, max_tokens=9)
    assert one(logits, sampling, (9,)).token == 9
    ended = one(logits, sampling, (9, 9))
    assert (ended.token, ended.finish, ended.position) == (2, "stop", 2)


def test_lengths_end_a_sequence() -> None:
    sampling = Sampling(temperature=0.0, max_tokens=3)
    assert one(row(), sampling, (4,)).finish is None
    assert one(row(), sampling, (4, 4)).finish == "length"
    full = sample(row()[None], [sequence(Sampling(temperature=0.0, max_tokens=99), (5,) * 7)], 10)
    assert full[0].finish == "length", "prompt, generated and this token are the longest sequence"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_output_that_is_not_finite_is_an_error(value: float) -> None:
    logits = row()
    logits[3] = value
    with pytest.raises(EngineError, match="not finite"):
        one(logits, Sampling())
