"""`python -m coral_engine_mock.measure TASK`: what timed steps of this engine would show, as JSON."""

from __future__ import annotations

import sys
from itertools import product

import msgspec
from msgspec import Struct

from coral.types.model import DTYPE_BYTES, ModelShape
from coral.types.step import AffineStepCost, Measurement, Measurements, StepWork
from coral_engine_mock.settings import CostSettings

LAYERS = (1, 2, 4)
ROLES = ((False, False), (True, False), (False, True))
WORKS = (
    StepWork(decode_rows=1, decode_context=64, logit_rows=1),
    StepWork(decode_rows=1, decode_context=512, logit_rows=1),
    StepWork(decode_rows=16, decode_context=1024, logit_rows=16),
    StepWork(decode_rows=32, decode_context=8192, logit_rows=32),
    StepWork(prefill_tokens=64, prefill_context=2080, logit_rows=1),
    StepWork(prefill_tokens=256, prefill_context=32896, logit_rows=1),
)


class Task(Struct, frozen=True, kw_only=True):
    shape: ModelShape
    gpu: str
    dtype: str
    cost: CostSettings


def measurements(task: Task) -> Measurements:
    """The mock holds no weights; its bytes are what the shape says, so that plans are the same."""
    shape, cost = task.shape, task.cost.step_cost(task.gpu)
    item = DTYPE_BYTES[task.dtype]
    attention = shape.hidden * (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    mlp = (3 if shape.gated_mlp else 2) * shape.hidden * shape.intermediate
    table = int(shape.vocab * shape.hidden * item)
    return Measurements(
        engine="mock",
        engine_version=cost.engine_version,
        device=task.gpu,
        points=tuple(_point(cost, *case) for case in product(WORKS, LAYERS, ROLES)),
        fixed_bytes=0,
        layer_bytes=int((attention + mlp) * item),
        embed_bytes=table,
        head_bytes=table,
        kv_token_bytes=int(2 * shape.kv_heads * shape.head_dim * item),
    )


def _point(cost: AffineStepCost, work: StepWork, layers: int, role: tuple[bool, bool]) -> Measurement:
    first, last = role
    seconds = cost.step_s(work, layers, first=first, last=last)
    return Measurement(work=work, layers=layers, first=first, last=last, seconds=seconds)


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(measurements(task)) + b"\n")


if __name__ == "__main__":
    main()
