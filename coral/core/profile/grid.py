"""Evaluate a step cost over many batches and all numbers of layers at once: `[..., L]` seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from coral.errors import ProfileError
from coral.hookspecs.profiler import StepCost
from coral.types.model import Role
from coral.types.program import Floats
from coral.types.step import StepWork


class WorkGrid(Struct, frozen=True, kw_only=True, eq=False):
    """Batches: the fields of `StepWork` as arrays of one shape."""

    prefill_tokens: Floats
    prefill_context: Floats
    decode_rows: Floats
    decode_context: Floats
    logit_rows: Floats


def step_grid(cost: StepCost, works: WorkGrid, layers: int, role: Role, tp: int) -> Floats:
    """Seconds of a step for every batch and 1..`layers` layers, shape `works.shape + (layers,)`.

    Raises ProfileError where the cost gives a time that is not finite and positive.
    """
    first, last = role in ("first", "only"), role in ("last", "only")
    fields = [getattr(works, name) for name in works.__struct_fields__]
    counts: Any = np.arange(1, layers + 1)
    if cost.elementwise:
        work: Any = StepWork(
            **{n: f[..., None] for n, f in zip(works.__struct_fields__, fields, strict=True)}
        )
        seconds = np.asarray(cost.step_s(work, counts, first=first, last=last, tp=tp), float)
        seconds = np.broadcast_to(seconds, (*fields[0].shape, layers))
    else:
        rows = [
            [cost.step_s(_work(row), int(j), first=first, last=last, tp=tp) for j in counts]
            for row in zip(*(field.ravel() for field in fields), strict=True)
        ]
        seconds = np.array(rows, float).reshape((*fields[0].shape, layers))
    if not np.all(np.isfinite(seconds) & (seconds > 0)):
        raise ProfileError(
            f"the step cost of engine {cost.engine!r} gives a time that is not finite and positive "
            f"(role {role}, tensor parallel {tp})",
            mend="check the profiler or its measurements",
        )
    return seconds


def _work(row: tuple[Any, ...]) -> StepWork:
    names = StepWork.__struct_fields__
    return StepWork(**{name: float(value) for name, value in zip(names, row, strict=True)})
