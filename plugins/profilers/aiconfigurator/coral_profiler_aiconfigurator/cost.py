"""What a step costs by the tables of measured kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from coral.errors import ProfileError, UnknownDegree
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.step import Provenance, StepParts, StepWork
from coral_profiler_aiconfigurator import weights
from coral_profiler_aiconfigurator.kernels import Kernels
from coral_profiler_aiconfigurator.options import AIConfiguratorOptions
from coral_profiler_aiconfigurator.systems import ERRORS, Formats, system_of
from coral_profiler_aiconfigurator.tables import Tables, sample


class KernelStepCost:
    """A `coral.hookspecs.profiler.StepCost`; tables of a tensor parallel degree are sampled when first asked.

    All tokens of a step, of prompts and of decode rows, pass the same matrix products at once, as engines
    batch them; prompts and decode rows have attention kernels of their own. Layers take the same time each,
    but for the window: of j layers as many have full attention as the worst run of j layers has.
    """

    profiler = "aiconfigurator"
    provenance: Provenance = "interpolated"
    elementwise = True

    def __init__(
        self,
        shape: ModelShape,
        gpu: Gpu,
        engine: str,
        kernels: Kernels,
        backend: str,
        formats: Formats,
        options: AIConfiguratorOptions,
    ) -> None:
        self.engine = engine
        self.engine_version = kernels.version if engine == backend else f"{backend} {kernels.version}"
        self.error = ERRORS[system_of(gpu)] if options.error is None else options.error
        self.kv_token_bytes = weights.kv_token_bytes(shape)
        self.fixed_bytes = int((1 - options.memory_fraction) * gpu.memory_bytes) + options.workspace
        self._shape = shape
        self._kernels = kernels
        self._formats = formats
        self._overhead_s = options.overhead
        self._window = max(shape.windows, default=0)
        self._full = full_layers(shape)
        self._tables: dict[int, Tables] = {}

    def tables(self, tp: int) -> Tables:
        """Raises UnknownDegree (at degree 1 ProfileError) where a kernel that it needs was not measured."""
        if tp not in self._tables:
            try:
                self._tables[tp] = sample(self._kernels, self._shape, self._formats, tp, self._window)
            except ProfileError as error:
                if tp == 1:
                    raise
                raise UnknownDegree(f"tensor parallel {tp}: {error.message}", mend=error.mend) from error
        return self._tables[tp]

    def step_s(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> float:
        return self.step_parts(work, layers, first=first, last=last, tp=tp).step_s

    def step_parts(self, work: StepWork, layers: int, *, first: bool, last: bool, tp: int = 1) -> StepParts:
        tables = self.tables(tp)
        tokens = work.tokens
        collectives: Any = 0.0
        if tables.reduce is not None:
            once = tables.reduce(tokens)
            collectives = 2 * layers * once + (once if first else 0.0)
            if last and tables.gather is not None:
                collectives = collectives + _of_some(work.logit_rows, tables.gather)
        return StepParts(
            overhead_s=self._overhead_s,
            compute_s=layers * tables.products(tokens),
            attention_s=self._attention_s(tables, work, layers),
            allreduce_s=collectives,
            embedding_s=tables.embedding(tokens) if first else 0.0,
            logits_s=_of_some(work.logit_rows, tables.logits) if last else 0.0,
        )

    def weight_bytes(self, layers: int, *, first: bool, last: bool, tied: bool) -> int:
        held = int(first) + int(last and not (first and tied))
        return layers * weights.layer_bytes(self._shape) + held * weights.table_bytes(self._shape)

    def _attention_s(self, tables: Tables, work: StepWork, layers: Any) -> Any:
        whole = tables.prompts(work.prefill_tokens, work.prefill_context)
        whole = whole + tables.rows(work.decode_rows, work.decode_context)
        if not self._window:
            return layers * whole
        full = self._full[layers]
        return full * whole + (layers - full) * self._windowed_s(tables, work)

    def _windowed_s(self, tables: Tables, work: StepWork) -> Any:
        """Kernels of that window where there are some, else full ones over what the window leaves."""
        prompts = tables.prompts_in_window or tables.prompts
        rows = tables.rows_in_window or tables.rows
        seen, held = work.prefill_context, work.decode_context
        if tables.prompts_in_window is None:
            seen = np.minimum(seen, work.prefill_tokens * self._window)
        if tables.rows_in_window is None:
            held = np.minimum(held, work.decode_rows * self._window)
        return prompts(work.prefill_tokens, seen) + rows(work.decode_rows, held)


def _of_some(rows: Any, curve: Any) -> Any:
    """Nothing for no rows, the first row's share for a part of one."""
    return curve(rows) * np.minimum(rows, 1.0)


def full_layers(shape: ModelShape) -> Any:
    """`[layers + 1]`: the most layers with full attention in any run of j consecutive ones."""
    if not shape.windows:
        return np.arange(shape.layers + 1)
    full = np.concatenate([[0], np.cumsum([window == 0 for window in shape.windows])])
    return np.array([int((full[j:] - full[: len(full) - j]).max()) for j in range(shape.layers + 1)])
