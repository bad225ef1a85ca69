"""Rows of the config and lines of the CSV file into offers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coral.errors import CloudError
from coral.types.hardware import Domain, MachineType, Offer

if TYPE_CHECKING:
    from coral_cloud_static.options import OfferRow


def offer(row: OfferRow, cloud: str) -> Offer:
    return Offer(
        machine_type=MachineType(
            name=row.type,
            gpu=row.gpu,
            gpus=row.gpus,
            host_memory_bytes=row.host_memory,
            nic_bytes_per_s=row.nic,
            nic_latency_s=row.nic_latency,
        ),
        domain=Domain(cloud=cloud, region=row.region, zone=row.zone),
        price_usd_h=row.price,
        obtainable=row.obtainable,
        market=row.market,
        preemption_per_h=row.preemption_per_h,
    )


def read(path: Path) -> list[OfferRow]:
    """The lines of a CSV file. Raises CloudError that lists every fault with its line."""
    from pydantic import ValidationError

    from coral_cloud_static.options import OfferRow

    rows: list[OfferRow] = []
    faults: list[str] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(line for line in file if not line.startswith("#"))
            for line in lines:
                given = {key: value for key, value in line.items() if key is not None and value}
                try:
                    rows.append(OfferRow.model_validate(given))
                except ValidationError as error:
                    faults += [
                        f"row {lines.line_num - 1}, {'.'.join(map(str, one['loc'])) or 'row'}: {one['msg']}"
                        for one in error.errors(include_url=False)
                    ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CloudError(f"cannot read the offers in {path}: {error}", mend="check `file`") from error
    if faults:
        raise CloudError(f"offers in {path} cannot be used:\n  " + "\n  ".join(faults))
    return rows


def distinct(offers: Sequence[Offer], cloud: str) -> list[Offer]:
    """Raises CloudError where an offer is given twice, or a machine type in two shapes."""
    faults = []
    shapes: dict[str, MachineType] = {}
    seen: set[str] = set()
    for one in offers:
        if one.key in seen:
            faults.append(f"{one.key} is offered twice")
        seen.add(one.key)
        if shapes.setdefault(one.machine_type.name, one.machine_type) != one.machine_type:
            faults.append(f"{one.machine_type.name} is described in two ways")
    if faults:
        raise CloudError(f"the offers of cloud {cloud} contradict each other: " + "; ".join(faults))
    return list(offers)
