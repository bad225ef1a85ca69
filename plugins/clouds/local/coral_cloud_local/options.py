"""Options of the local cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from coral.hookspecs.options import Bytes, Duration, LocalPath, Options, Rate


class LocalMachineType(Options):
    """A machine type made of CPU devices of this machine."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    memory: Annotated[Bytes, Field(gt=0)]
    """Memory of ONE device: weights, KV and workspace together; enforced."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """CPU threads of one device."""
    devices: Annotated[int, Field(ge=1, le=64)] = 1
    """Devices of one machine."""
    price: Annotated[float, Field(ge=0)] = 0.0
    """USD per hour and machine."""
    count: Annotated[int, Field(ge=0, le=1024)] = 1
    """How many of these there are."""
    gpu: Annotated[str, Field(min_length=1)] | None = None
    """Name of the device for the planner; `local-<name>` where not given."""
    nic_latency: Duration = 0.0
    """One hop to another machine; measured on loopback where 0."""
    nic_bandwidth: Rate = 0.0
    """Between machines; unknown where 0."""

    @property
    def device(self) -> str:
        return self.gpu or f"local-{self.name}"


class LocalOptions(Options):
    """Which machine types this machine is cut into, and where the running ones are noted."""

    machines: tuple[LocalMachineType, ...] = ()
    """Machine types; without any there is one, of all cores and half of the memory."""
    folder: LocalPath = Field(default=Path("~/.cache/coral/local"), validate_default=True)
    """Where the running agents are noted."""
    release_timeout: Duration = 15.0
    """How long an agent may take to end what it runs before it is killed."""

    @model_validator(mode="after")
    def _consistent(self) -> LocalOptions:
        names = [one.name for one in self.machines]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"machine types given twice: {', '.join(doubled)}")
        devices: dict[str, LocalMachineType] = {}
        for one in self.machines:
            other = devices.setdefault(one.device, one)
            if (other.memory, other.threads) != (one.memory, one.threads):
                raise ValueError(
                    f"{other.name} and {one.name} both have devices {one.device}, of unlike memory or threads"
                )
        return self
