"""What the clouds of a config offer, asked once for a command that runs to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig
    from coral.hookspecs.cloud import Cloud
    from coral.types.hardware import Gpu, Offer


def ask_offers(session: LoadedConfig) -> tuple[list[Offer], dict[str, Gpu]]:
    """All offers, and the GPUs that only a cloud knows, by name."""
    clouds: list[Cloud] = [
        session.registry.build("cloud", use.use, use.options) for use in session.config.clouds
    ]

    async def ask() -> list[Offer]:
        answers = await asyncio.gather(*(cloud.offers() for cloud in clouds))
        return [offer for answer in answers for offer in answer]

    return asyncio.run(ask()), {gpu.name: gpu for cloud in clouds for gpu in cloud.gpus()}
