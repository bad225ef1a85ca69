from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coral.core.config import parse_config
from coral.core.generate.engines import EnginesOf
from coral.core.generate.specs import model_specs
from coral.core.plugins import load_plugins
from coral.core.serve.coordinator import preparation
from coral.core.serve.coordinator.preparation import PreparationAsk, PreparationError, prepared
from coral.core.serve.coordinator.preparation_process import capabilities
from coral.types.hardware import Gpu

SHAPE = {
    "architecture": "LlamaForCausalLM", "layers": 4, "hidden": 64, "heads": 2, "kv_heads": 1,
    "head_dim": 32, "intermediate": 128, "vocab": 500, "max_positions": 512, "weight_dtype": "float32",
    "kv_dtype": "float32", "activation_dtype": "float32",
}  # fmt: skip
ENGINE = """
from coral.hookspecs import hookimpl
from coral.hookspecs.component import EngineComponent
from coral.hookspecs.engine import EngineCapabilities
from coral.hookspecs.options import Options

class Plain:
    def capabilities(self, shape, gpu):
        return EngineCapabilities(
            version="1", block_size=16, dtypes=("float32",), max_step_tokens=64, max_step_requests=8
        )

@hookimpl
def coral_engines():
    build = lambda options: Plain()
    return [EngineComponent(name="plain", summary="for a test", options=Options, build=build, load=build)]
"""
GPU = Gpu(name="cpu-a", kind="cpu", memory_bytes=1 << 30, memory_bytes_per_s=0, flops={}, threads=1)


def test_workers_step_within_the_engines_own_limits_and_the_configs(tmp_path: Path) -> None:
    """A limit above the engine's is no licence: the plan counts on the lesser, workers get the same."""
    plugin = tmp_path / "plain_engine.py"
    plugin.write_text(ENGINE)
    registry = load_plugins([plugin])
    models = [
        {
            "name": name,
            "source": "./none",
            "dtype": "float32",
            "shape": SHAPE,
            "slo": {"prefill": 4, "decode": 0.5},
            "demand": {"requests_per_s": 1, "input_tokens": 60, "output_tokens": 40},
            "engine": engine,
        }
        for name, engine in (("free", {}), ("less", {"step_tokens": 7}), ("more", {"step_requests": 99}))
    ]
    config = parse_config({"models": models, "engine": "plain"}, registry=registry, folder=tmp_path)
    engines = EnginesOf(config, registry)
    able = {spec.name: capabilities(spec, {"cpu-a": GPU}, engines)["cpu-a"] for spec in model_specs(config)}
    limits = {name: (one.max_step_tokens, one.max_step_requests) for name, one in able.items()}
    assert limits == {"free": (64, 8), "less": (7, 8), "more": (64, 8)}


def test_a_process_that_ends_before_it_was_asked_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "MODULE", "coral.no_such_module")
    long = ("x" * (1 << 22),)  # more than a pipe takes
    ask = PreparationAsk(config={}, folder=".", plugin_paths=long, offers=(), gpus=())
    with pytest.raises(PreparationError, match="No module named"):
        asyncio.run(prepared(ask, tmp_path / "log", lambda _: None))
