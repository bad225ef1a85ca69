"""The question of the paper's Fig. 1a: what mixing GPU models buys the best Qwen3-235B prefill template.

At 1800 ms, tokens/s per USD/h of the best template of node types from each family, priced in the one domain
where it is cheapest. The paper's figures stand beside; its prices and step costs are its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks import paper
from benchmarks.market import machine_types
from coral.core.generate.prices import domains_of, template_prices
from coral.types.hardware import NodeType
from coral.types.program import Floats

MODEL = "qwen3-235b"
FAMILIES: dict[str, tuple[str, ...]] = {
    "any": tuple(f"{gpu} x{n}" for gpu in paper.GPUS["extended"] for n in paper.COUNTS),
    "H100 and L40S": tuple(f"{gpu} x{n}" for gpu in ("H100", "L40S") for n in paper.COUNTS),
    "H100, sizes mixed": tuple(f"H100 x{n}" for n in paper.COUNTS),
    **{f"H100 x{n} only": (f"H100 x{n}",) for n in paper.COUNTS},
    "L40S, sizes mixed": tuple(f"L40S x{n}" for n in paper.COUNTS),
}
PAPER = {
    "best": "3 x (L40S x1) + 3 x (H100 x2), layers 6, 8, 8, 24, 24, 24",
    "best_tokens_s_per_usd": 526,
    "pure_h100_tokens_s_per_usd": (481, 460, 476),
}
PAPERS_NODES = {"L40S x1": 3, "H100 x2": 3}


def mixing(profiler: str, max_nodes: int = 6, memory_ratio: float = 12.0) -> Iterator[dict[str, Any]]:
    spec = next(one for one in paper.models("extended") if one.name == MODEL)
    spec = msgspec.structs.replace(spec, phases=("prefill",))
    with tempfile.TemporaryDirectory() as folder:
        library = paper.library(
            "extended", profiler, Path(folder), specs=(spec,), max_nodes=max_nodes, memory_ratio=memory_ratio
        )
        table = library.table(MODEL, "prefill")
        offers = machine_types("extended")
        prices, at = template_prices(table, offers)
        value: Floats = table.throughput / prices
        for family, names in {**FAMILIES, "the paper's nodes": tuple(PAPERS_NODES)}.items():
            inside = ~table.usage[:, [str(kind) not in names for kind in table.node_types]].any(axis=1)
            if family == "the paper's nodes":
                inside &= _within(table.usage, table.node_types)
            rows = np.flatnonzero(inside & ~np.isnan(value))
            record: dict[str, Any] = {"part": "fig1a", "profiler": profiler, "family": family}
            if not len(rows):
                yield record | {"tokens_s_per_usd_h": None}
                continue
            row = int(rows[value[rows].argmax()])
            template = library.template(MODEL, "prefill", row)
            yield record | {
                "tokens_s_per_usd_h": round(float(value[row]), 1),
                "tokens_s": round(template.throughput, 1),
                "usd_h": round(float(prices[row]), 3),
                "domain": str(domains_of(offers)[at[row]]),
                "stages": template.placement.picture(),
            }
    yield {"part": "fig1a", "profiler": "the paper's", **PAPER}


def _within(usage: np.ndarray[Any, Any], kinds: tuple[NodeType, ...]) -> Any:
    """Rows of at most the paper's nodes: one that leaves some out does as well as the whole."""
    most = np.array([PAPERS_NODES.get(str(kind), 0) for kind in kinds])
    return (usage <= most).all(axis=1)
