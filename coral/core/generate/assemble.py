"""From a validated config to models and their template library: what every command starts with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coral.core.generate.build import Progress
from coral.core.generate.library import TemplateLibrary
from coral.types.hardware import Gpu, Offer
from coral.types.model import ModelSpec


def prepare(
    config: Any,
    registry: Any,
    offers: Sequence[Offer],
    gpus: Mapping[str, Gpu],
    progress: Progress | None = None,
) -> tuple[tuple[ModelSpec, ...], TemplateLibrary]:
    """Resolve the models, profile them on the GPUs of the offers, and build or open the library.

    `gpus` are those that only a cloud knows (its `gpus()`), by name; the catalogue has the others. The
    library lies in `TemplateLibrary.folder`; another process opens it by `open_library(folder)`.
    """
    raise NotImplementedError
