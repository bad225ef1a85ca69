from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coral.testing.tiny import LAYERS, make_tiny
from coral.types.hardware import NodeType
from coral.types.stage import StageSpec


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family, made once per session."""
    root = tmp_path_factory.mktemp("tiny")
    return lambda family: make_tiny(family, root / family)


@pytest.fixture(scope="session")
def stage_of(tiny_models: Callable[[str], Path]) -> Callable[..., StageSpec]:
    """All layers of a family's tiny model on one CPU node; keywords replace fields."""

    def make(family: str, **fields: Any) -> StageSpec:
        stage = StageSpec(
            instance="i",
            generation=0,
            node="node",
            stage=0,
            stages=1,
            first_layer=0,
            end_layer=LAYERS,
            layers_total=LAYERS,
            source=str(tiny_models(family)),
            model=family,
            engine="torch",
            dtype="float32",
            node_type=NodeType("cpu", 1),
            devices=(0,),
            device_kind="cpu",
            threads=1,
            memory_bytes=16 << 30,  # also counts what the test process holds
            max_model_len=256,
            max_step_tokens=128,
            max_step_requests=8,
            options={"kv_blocks": 64},
        )
        return msgspec.structs.replace(stage, **fields)

    return make
