"""The templates benchmark, small: its records say what it promises."""

from __future__ import annotations

import pytest

from benchmarks import templates
from benchmarks.budgets import budgets
from benchmarks.data import DataMissing, data_file
from benchmarks.mixing import PAPER, mixing


@pytest.fixture(autouse=True)
def _data() -> None:
    try:
        data_file("model_configs/gpt-oss-120b.json")
        data_file("azure_llm_2023/AzureLLMInferenceTrace_conv.csv")
    except DataMissing as missing:
        pytest.skip(str(missing))


def test_a_cold_build_is_measured_whole() -> None:
    (record,) = templates.fig13("analytic", [(2, 4.0, 605, 2)])
    assert record["combinations"] >= record["templates"] >= record["irreducible"] > 0
    assert record["best_tokens_s_per_usd_h"] > 0
    assert record["wall_s"] > 0
    assert record["cpu_s"] > 0
    assert 0.05 < record["peak_gib"] < 4


def test_mixing_tells_families_apart() -> None:
    records = list(mixing("analytic", max_nodes=3))
    value = {one["family"]: one["tokens_s_per_usd_h"] or 0.0 for one in records if "family" in one}
    assert value["any"] >= value["H100 and L40S"] >= value["H100, sizes mixed"] > 0
    assert value["H100, sizes mixed"] >= max(value[f"H100 x{n} only"] for n in (1, 2, 4, 8))
    assert records[-1]["best_tokens_s_per_usd"] == PAPER["best_tokens_s_per_usd"]


def test_free_budgets_never_lose() -> None:
    records = list(budgets("analytic", max_nodes=2, memory_ratio=4.0))
    assert len(records) == 12
    for record in records:
        assert record["feasible_free"] >= record["feasible_uniform"]
        if record["feasible_uniform"]:
            assert record["gain_max"] >= record["gain_mean"] >= 1.0
            assert record["best_tokens_s_per_usd_h_free"] >= record["best_tokens_s_per_usd_h_uniform"]
    assert max(record["gain_max"] or 0.0 for record in records) > 1.01
