"""The hardware catalogue: GPUs and machine types known by name, as data in `hardware.json`.

Every GPU carries a note of where its figures come from; NIC rates are the sustained ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec
from msgspec import Struct

from coral.errors import ProfileError
from coral.types.hardware import Gpu, MachineType

GIB = 1 << 30


class _Gpu(Struct, frozen=True, rename={"kind": "class"}):
    memory_gib: float
    memory_gb_s: float
    tflops: dict[str, float]
    link_gb_s: float
    link_us: float
    kind: str
    """A class of `calibration.CLASSES`."""
    source: str
    vendor: Literal["cuda", "rocm"] = "cuda"


class _Machine(Struct, frozen=True):
    gpu: str
    gpus: int
    host_gib: float
    nic_gbit: float


class _NicClass(Struct, frozen=True):
    latency_us: float


class _Hardware(Struct, frozen=True):
    gpus: dict[str, _Gpu]
    nic_classes: dict[str, _NicClass]
    machine_types: dict[str, _Machine]
    machine_source: str


@cache
def _hardware() -> _Hardware:
    text = files("coral.core.profile").joinpath("hardware.json").read_bytes()
    return msgspec.json.decode(text, type=_Hardware)


@cache
def gpus() -> Mapping[str, Gpu]:
    """Every GPU of the catalogue by name."""
    return {
        name: Gpu(
            name=name,
            kind=row.vendor,
            memory_bytes=int(row.memory_gib * GIB),
            memory_bytes_per_s=row.memory_gb_s * 1e9,
            flops={dtype: tera * 1e12 for dtype, tera in row.tflops.items()},
            link_bytes_per_s=row.link_gb_s * 1e9,
            link_latency_s=row.link_us * 1e-6,
        )
        for name, row in _hardware().gpus.items()
    }


def gpu(name: str) -> Gpu:
    """Raises ProfileError for a GPU that is not in the catalogue, naming its near misses."""
    known = gpus()
    if name not in known:
        raise ProfileError(
            f"no GPU is named {name!r} in the hardware catalogue",
            mend=f"{_near(name, known)} A GPU of your own: give its figures in the cloud's `gpus`",
        )
    return known[name]


def distinct(gpus: Iterable[Gpu]) -> dict[str, Gpu]:
    """GPUs that only clouds know, by name. Raises ProfileError where two of them differ under one name:
    templates and offers know a GPU by its name alone."""
    found: dict[str, Gpu] = {}
    for one in gpus:
        if found.setdefault(one.name, one) != one:
            raise ProfileError(
                f"two clouds describe GPU {one.name!r} in different ways",
                mend="give it one description, or two names",
            )
    return found


def gpu_source(name: str) -> str:
    """Where the figures of a GPU come from."""
    gpu(name)
    return _hardware().gpus[name].source


def gpu_class(name: str) -> str:
    """The class that a GPU was calibrated in (`calibration`); `unknown` for one not in the catalogue."""
    row = _hardware().gpus.get(name)
    return row.kind if row is not None else "unknown"


@cache
def machine_types() -> Mapping[str, MachineType]:
    """Every machine type of the catalogue by the name its cloud gives it."""
    return {
        name: MachineType(
            name=name,
            gpu=row.gpu,
            gpus=row.gpus,
            host_memory_bytes=int(row.host_gib * GIB),
            nic_bytes_per_s=row.nic_gbit * 1e9 / 8,
            nic_latency_s=_nic_latency_s(row.nic_gbit),
        )
        for name, row in _hardware().machine_types.items()
    }


def machine_type(name: str) -> MachineType:
    """Raises ProfileError for a machine type that is not in the catalogue, naming its near misses."""
    known = machine_types()
    if name not in known:
        raise ProfileError(
            f"no machine type is named {name!r} in the hardware catalogue", mend=_near(name, known)
        )
    return known[name]


def _nic_latency_s(gbit: float) -> float:
    """One-way latency of the fastest NIC class that `gbit` reaches."""
    classes = sorted((float(rate), row.latency_us) for rate, row in _hardware().nic_classes.items())
    reached = [latency for rate, latency in classes if rate <= gbit] or [classes[0][1]]
    return reached[-1] * 1e-6


def _near(name: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(sorted(known))}"
