"""The config of a system whose plan is a pipeline: a model larger than any machine, on the mock engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHAPE = {
    "architecture": "LlamaForCausalLM",
    "layers": 24,
    "hidden": 1024,
    "heads": 16,
    "kv_heads": 4,
    "head_dim": 64,
    "intermediate": 4096,
    "vocab": 259,
    "max_positions": 2048,
}
"""Larger than any one machine: nominal, since the mock engine holds no weights."""


def pipeline_config(
    source: Path,
    *,
    cloud: Path,
    state: Path,
    cost: Mapping[str, float],
    small: int = 3,
    big: int = 2,
    **serve: Any,
) -> dict[str, Any]:
    """Of the model `tiny`, whose tokenizer is at `source`.

    `cloud`, `state`: folders of the local cloud and of Coral. `cost`: of a step, in seconds, by the mock
    engine's names. `small`, `big`: how many machines there are of 600 MiB and of 1 GiB. `serve`: further keys
    of that section.
    """
    return {
        "models": [
            {
                "name": "tiny",
                "source": str(source),
                "slo": {"prefill": "2s", "decode": "500ms"},
                "demand": {"requests_per_s": 2, "input_tokens": 20, "output_tokens": 10},
                "dtype": "float32",
                "shape": SHAPE,
            }
        ],
        "engine": {"use": "mock", "vocab": 259, "load": "100ms", "cost": {"token_s": 1e-6, **cost}},
        "clouds": [
            {
                "use": "local",
                "folder": str(cloud),
                "machines": [
                    {"name": "small", "memory": "600MiB", "price": 0.1, "count": small},
                    {"name": "big", "memory": "1GiB", "price": 0.15, "count": big},
                ],
            }
        ],
        "serve": {"http": "127.0.0.1:0", "drain_timeout": "10s", **serve},
        "state": {"folder": str(state)},
    }
