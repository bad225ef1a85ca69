"""The torch engine: layer ranges of Hugging Face models in plain PyTorch, on CPU and CUDA."""

from __future__ import annotations

from coral.hookspecs import hookimpl
from coral.hookspecs.component import EngineComponent


@hookimpl
def coral_engines() -> list[EngineComponent]:
    return [
        EngineComponent(
            name="torch",
            summary="layer ranges in plain PyTorch: llama, mistral, qwen, phi, gpt-oss; CPU and CUDA",
            options="coral_engine_torch.options:TorchOptions",
            build="coral_engine_torch.engine:build",
            load="coral_engine_torch.runner:load",
        )
    ]
