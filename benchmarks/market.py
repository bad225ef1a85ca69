"""The markets of the paper's setups: prices, sizes and what can be had.

Prices: on demand, USD/h, from the SkyPilot catalogue (`cloud_gpu_prices`). `sizes="paper"`: 1, 2, 4 and 8
GPUs of every model in every region; a size that is not sold costs n times the cheapest price per GPU of
that model there, a model that a region's cloud does not sell costs what it costs elsewhere times the
region's price level. `sizes="sold"`: only what AWS and Google Cloud really sell. Rows that the
catalogue's notes call suspect (H100 and A100-80GB in us-central1) are replaced by the consistent ones of
us-east4 and us-east5.

Obtainable machines: sizes are spread as over the GPU nodes of Alibaba's 2023 and 2026 cluster traces (1
GPU 62 %, 2 GPUs 9 %, 4 GPUs 1 %, 8 GPUs 27 %), every (region, GPU, size) is varied log-normally with the
seed, and all are scaled and rounded at random; the scale is the least at which the linear relaxation can
serve `supply` times the demand. Sizes that a region does not sell leave their share to those it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from benchmarks.paper import COUNTS, GPUS, Setup
from benchmarks.servable import Servable
from coral.core.profile import catalogue
from coral.hookspecs.planner import Library
from coral.types.hardware import Domain, MachineType, Offer
from coral.types.model import ModelSpec
from coral.types.program import Floats

Sizes = Literal["paper", "sold"]

OHIO, SEOUL, IOWA = (
    Domain(cloud="aws", region="us-east-2"),
    Domain(cloud="aws", region="ap-northeast-2"),
    Domain(cloud="gcp", region="us-central1"),
)
DOMAINS: dict[Setup, tuple[Domain, ...]] = {"core": (OHIO, SEOUL), "extended": (OHIO, SEOUL, IOWA)}
LEVEL = {OHIO: 1.0, SEOUL: 1.2296, IOWA: 1.0}
"""Price level of a region: on demand, ap-northeast-2 over us-east-2, for every g5, g6 and g6e size."""

SOLD: dict[Domain, dict[str, tuple[str, float]]] = {
    OHIO: {
        "L40S x1": ("g6e.xlarge", 1.861),
        "L40S x4": ("g6e.12xlarge", 10.49264),
        "L40S x8": ("g6e.48xlarge", 30.13118),
        "L4 x1": ("g6.xlarge", 0.8048),
        "L4 x4": ("g6.12xlarge", 4.6016),
        "L4 x8": ("g6.48xlarge", 13.3504),
        "A10G x1": ("g5.xlarge", 1.006),
        "A10G x4": ("g5.12xlarge", 5.672),
        "A10G x8": ("g5.48xlarge", 16.288),
        "H100 x1": ("p5.4xlarge", 6.88),
        "H100 x8": ("p5.48xlarge", 55.04),
    },
    SEOUL: {
        "L40S x1": ("g6e.xlarge", 2.288),
        "L40S x4": ("g6e.12xlarge", 12.90014),
        "L40S x8": ("g6e.48xlarge", 37.04468),
        "L4 x1": ("g6.xlarge", 0.9896),
        "L4 x4": ("g6.12xlarge", 5.65823),
        "L4 x8": ("g6.48xlarge", 16.41595),
        "A10G x1": ("g5.xlarge", 1.237),
        "A10G x4": ("g5.12xlarge", 6.97442),
        "A10G x8": ("g5.48xlarge", 20.02809),
        "H100 x8": ("p5.48xlarge", 75.9552),
    },
    IOWA: {
        "A100-80GB x1": ("a2-ultragpu-1g", 4.4242 + 1.09962),
        "A100-80GB x2": ("a2-ultragpu-2g", 8.84839 + 2.19924),
        "A100-80GB x4": ("a2-ultragpu-4g", 17.69679 + 4.39849),
        "A100-80GB x8": ("a2-ultragpu-8g", 2 * 17.69679 + 8.79698),
        "H100 x1": ("a3-highgpu-1g", 19.5931 / 2 + 1.18251),
        "H100 x2": ("a3-highgpu-2g", 19.5931 + 2.36502),
        "H100 x4": ("a3-highgpu-4g", 39.1862 + 2 * 2.36502),
        "H100 x8": ("a3-highgpu-8g", 78.37241 + 9.46006),
    },
}
MIX = {1: 0.623, 2: 0.094, 4: 0.012, 8: 0.271}
SPREAD = 0.5
"""Standard deviation of the logarithm of what can be had."""


class Listing(Struct, frozen=True, kw_only=True):
    """A machine type on sale in a domain."""

    machine_type: MachineType
    domain: Domain
    price_usd_h: float


def listings(setup: Setup, sizes: Sizes = "paper") -> tuple[Listing, ...]:
    found = []
    for domain in DOMAINS[setup]:
        for gpu in GPUS[setup]:
            for count in COUNTS:
                one = (
                    _sold(domain, gpu, count) or (sizes == "paper" and _imagined(domain, gpu, count)) or None
                )
                if one is not None:
                    found.append(one)
    return tuple(found)


def machine_types(setup: Setup) -> tuple[Offer, ...]:
    """One offer of every machine type, for what depends on machine types alone."""
    return tuple(_offer(one, 1) for one in listings(setup))


def market(
    setup: Setup,
    specs: Sequence[ModelSpec],
    library: Library,
    *,
    supply: float,
    seed: int = 0,
    sizes: Sizes = "paper",
) -> tuple[Offer, ...]:
    """What can be had, `supply` times the demand of `specs` by the linear relaxation over the library."""
    listed = listings(setup, sizes)
    random = np.random.default_rng(seed)
    weight = np.array([_share(listed, one) for one in listed]) * random.lognormal(0.0, SPREAD, len(listed))
    whole = tuple((one.domain, one.machine_type.gpu, one.machine_type.gpus) for one in listed)
    servable = Servable(specs, library, whole)
    offset = random.random(len(listed))

    def counts(scale: float) -> Floats:
        return np.floor(weight * scale + offset)

    low, high = 0.0, 2 * supply / servable.multiple(weight)
    while servable.multiple(counts(high)) < supply:
        low, high = high, 2 * high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if servable.multiple(counts(middle)) >= supply else (middle, high)
    return tuple(_offer(one, int(count)) for one, count in zip(listed, counts(high), strict=True))


def _share(listed: Sequence[Listing], one: Listing) -> float:
    sold = [
        other.machine_type.gpus
        for other in listed
        if (other.domain, other.machine_type.gpu) == (one.domain, one.machine_type.gpu)
    ]
    return MIX[one.machine_type.gpus] / sum(MIX[count] for count in sold)


def _sold(domain: Domain, gpu: str, count: int) -> Listing | None:
    name, price = SOLD[domain].get(f"{gpu} x{count}", (None, 0.0))
    if name is None:
        return None
    return Listing(machine_type=catalogue.machine_type(name), domain=domain, price_usd_h=price)


def _imagined(domain: Domain, gpu: str, count: int) -> Listing:
    """A size that is not sold: n of the cheapest per GPU there, else where the GPU is sold cheapest."""
    there = [one for n in COUNTS if (one := _sold(domain, gpu, n))]
    level = 1.0
    if not there:  # cheapest at the price level of us-east-2
        there = [one for other in SOLD for n in COUNTS if (one := _sold(other, gpu, n))]
        level = LEVEL[domain]

    def each(one: Listing) -> float:
        return one.price_usd_h / one.machine_type.gpus / (1.0 if one.domain == domain else LEVEL[one.domain])

    base = min(there, key=each)
    kind = base.machine_type
    part = count / kind.gpus
    return Listing(
        machine_type=MachineType(
            name=f"{count}x{gpu}",
            gpu=gpu,
            gpus=count,
            host_memory_bytes=int(kind.host_memory_bytes * part),
            nic_bytes_per_s=kind.nic_bytes_per_s * part,
            nic_latency_s=kind.nic_latency_s,
        ),
        domain=domain,
        price_usd_h=each(base) * level * count,
    )


def _offer(one: Listing, obtainable: int) -> Offer:
    return Offer(
        machine_type=one.machine_type,
        domain=one.domain,
        price_usd_h=one.price_usd_h,
        obtainable=obtainable,
    )
