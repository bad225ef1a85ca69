"""What can be rented and what is rented: GPUs, machine types, offers, machines, nodes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Market = Literal["on_demand", "spot"]


class Gpu(Struct, frozen=True, kw_only=True):
    """One accelerator, or one CPU device of the `local` cloud (`kind="cpu"`).

    `flops` is peak dense FLOP/s by dtype name (`bfloat16`, `float16`, `float8`, `float32`).
    """

    name: str
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    memory_bytes: int
    memory_bytes_per_s: float
    flops: dict[str, float]
    link_bytes_per_s: float = 0.0
    link_latency_s: float = 0.0
    threads: int = 1
    """CPU threads of one device; only for `kind="cpu"`."""


class NodeType(Struct, frozen=True, order=True):
    """`count` GPUs of one machine that work as one member of a stage, e.g. `L40S x2`."""

    gpu: str
    count: int

    def __str__(self) -> str:
        return f"{self.gpu} x{self.count}"

    @classmethod
    def parse(cls, text: str) -> NodeType:
        gpu, _, count = text.rpartition(" x")
        if not gpu or not count.isdecimal() or int(count) < 1:
            raise ValueError(f"not a node type: {text!r} (expected for example 'L40S x2')")
        return cls(gpu, int(count))


class MachineType(Struct, frozen=True, kw_only=True):
    """What a cloud rents out: `gpus` GPUs of one model in one machine."""

    name: str
    gpu: str
    gpus: int
    host_memory_bytes: int = 0
    nic_bytes_per_s: float = 0.0
    nic_latency_s: float = 0.0


class Domain(Struct, frozen=True, order=True):
    """Where nodes can work together. Templates never span domains."""

    cloud: str
    region: str
    zone: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.cloud, self.region, self.zone) if part)


class Offer(Struct, frozen=True, kw_only=True):
    """A machine type in a domain at a price. `obtainable`: how many MORE can be had now."""

    machine_type: MachineType
    domain: Domain
    price_usd_h: float
    obtainable: int
    market: Market = "on_demand"
    preemption_per_h: float = 0.0
    """Preemptions to be expected of one spot machine in an hour."""

    @property
    def key(self) -> str:
        return f"{self.domain}:{self.machine_type.name}:{self.market}"


class Machine(Struct, frozen=True, kw_only=True):
    """A rented machine; it can outlive the instances on it."""

    id: str
    machine_type: MachineType
    domain: Domain
    price_usd_h: float
    market: Market = "on_demand"
    address: str = ""
    preemption_per_h: float = 0.0
    """As of its offer."""
    deployment: str = ""
    """The tag `coral` of the order it was rented by: whose it is, where several rent at one cloud."""


class Node(Struct, frozen=True, kw_only=True):
    """A slice of a machine: the devices that work as one member of a stage."""

    machine_id: str
    node_type: NodeType
    devices: tuple[int, ...]
