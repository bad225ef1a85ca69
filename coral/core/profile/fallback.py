"""One profiler behind another: the second is asked where the first knows nothing."""

from __future__ import annotations

from coral.errors import BrokenRun, ProfileError
from coral.hookspecs.profiler import Measure, Profiler, StepCost
from coral.types.hardware import Gpu
from coral.types.model import ModelShape


class WithFallback:
    """A `coral.hookspecs.profiler.Profiler`: `first`, and where that raises ProfileError, `second`.

    Which of the two answered is the step cost's own `profiler`. A measuring run that fails is no ignorance:
    BrokenRun passes through.
    """

    def __init__(self, first: Profiler, second: Profiler) -> None:
        self.first = first
        self.second = second

    def step_cost(
        self, model: ModelShape, gpu: Gpu, engine: str, *, dtype: str, measure: Measure | None
    ) -> StepCost:
        """Raises ProfileError where neither knows that combination, with what both say."""
        try:
            return self.first.step_cost(model, gpu, engine, dtype=dtype, measure=measure)
        except BrokenRun:
            raise
        except ProfileError as refusal:
            try:
                return self.second.step_cost(model, gpu, engine, dtype=dtype, measure=measure)
            except ProfileError as error:
                raise ProfileError(
                    f"{refusal.message}; and {error.message}", mend=error.mend or refusal.mend
                ) from error
