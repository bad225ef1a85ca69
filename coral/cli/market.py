"""What the clouds of a config offer and hold, asked once for a command that runs to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coral.core.config import LoadedConfig
    from coral.hookspecs.cloud import Cloud
    from coral.types.hardware import Gpu, Machine, Offer


class Market(NamedTuple):
    """`gpus`: those that only a cloud knows, by name."""

    offers: list[Offer]
    machines: list[Machine]
    gpus: dict[str, Gpu]


def ask_clouds(session: LoadedConfig) -> Market:
    """Raises CloudError, and ProfileError where two clouds describe one GPU differently."""
    from coral.core.profile.catalogue import distinct

    clouds: list[Cloud] = [
        session.registry.build("cloud", use.use, use.options) for use in session.config.clouds
    ]

    async def ask() -> tuple[list[Offer], list[Machine]]:
        offers = await asyncio.gather(*(cloud.offers() for cloud in clouds))
        machines = await asyncio.gather(*(cloud.machines() for cloud in clouds))
        return [one for some in offers for one in some], [one for some in machines for one in some]

    offers, machines = asyncio.run(ask())
    return Market(offers, machines, distinct(gpu for cloud in clouds for gpu in cloud.gpus()))
