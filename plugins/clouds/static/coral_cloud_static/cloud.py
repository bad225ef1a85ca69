"""A cloud that only has a price list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coral.errors import CloudError
from coral.hookspecs.cloud import Notice, RentOrder
from coral.types.hardware import Gpu, Machine, Offer
from coral_cloud_static.offers import distinct, offer, read

if TYPE_CHECKING:
    from coral_cloud_static.options import StaticOptions


class StaticCloud:
    """See `coral.hookspecs.cloud.Cloud`. Nothing is ever held, and nothing can be rented."""

    def __init__(self, options: StaticOptions) -> None:
        self._options = options

    async def offers(self) -> Sequence[Offer]:
        rows = [*self._options.offers, *(read(self._options.file) if self._options.file else ())]
        return distinct([offer(row, self._options.name) for row in rows], self._options.name)

    async def machines(self) -> Sequence[Machine]:
        return []

    async def rent(self, order: RentOrder) -> Machine:
        raise CloudError(
            f"static offers cannot be rented ({order.offer.key})",
            mend="use it to plan; name a cloud that rents machines in `clouds` to serve",
        )

    async def release(self, machines: Sequence[str]) -> None:
        return None

    async def notices(self) -> Sequence[Notice]:
        return []

    def gpus(self) -> Sequence[Gpu]:
        return [
            Gpu(
                name=row.name,
                memory_bytes=row.memory,
                memory_bytes_per_s=row.memory_bandwidth,
                flops=dict(row.flops),
                link_bytes_per_s=row.link_bandwidth,
                link_latency_s=row.link_latency,
            )
            for row in self._options.gpus
        ]


def build(options: StaticOptions) -> StaticCloud:
    return StaticCloud(options)
