"""How near step costs are to public measurements: median error by source, GPU and phase.

    python -m benchmarks.tables --json

Sources and what is taken from each are told in `benchmarks/measured.py`. `median_error`, `p90_error`: of
|predicted / measured - 1|; `bias`: median of predicted / measured. `held_out` is the median error over the
samples that nothing was fitted to, null where all were. `refused`: samples that the profiler knows nothing
of, with its first reason. Lines of source `class` are over all sources (without `_eager`) of a class of
GPU; their `held_out` is the error that `analytic` states for it (`coral/core/profile/calibration.py` says
what was fitted to what)."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from msgspec import Struct

from benchmarks.data import DataMissing
from benchmarks.measured import Sample, samples
from coral.core.plugins import load_plugins
from coral.core.profile import catalogue
from coral.errors import ProfileError
from coral.hookspecs.profiler import Profiler, StepCost
from coral.types.model import ModelShape

PROFILERS = ("analytic", "aiconfigurator")


class Result(Struct, frozen=True, kw_only=True):
    profiler: str
    source: str
    gpu: str
    phase: str
    samples: int
    median_error: float | None = None
    p90_error: float | None = None
    bias: float | None = None
    held_out: float | None = None
    refused: int = 0
    reason: str = ""


def results(profiler: str, cost: Callable[[Sample], StepCost], measured: Iterable[Sample]) -> list[Result]:
    """One line for each (source, GPU, phase) and each class. `cost` raises ProfileError for what it does not
    know."""
    ratios: dict[tuple[str, str, str], list[tuple[float, bool]]] = defaultdict(list)
    refused: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in measured:
        keys: list[tuple[str, str, str]] = [(one.source, one.gpu, one.phase)]
        if not one.phase.endswith("_eager"):
            keys.append(("class", catalogue.gpu_class(one.gpu), "all"))
        try:
            ratio_of = (one.predicted_s(cost(one)) / one.seconds, one.fitted)
            for key in keys:
                ratios[key].append(ratio_of)
        except ProfileError as error:
            for key in keys:
                refused[key].append(str(error))
    found = []
    for source, gpu, phase in sorted(ratios.keys() | refused.keys()):
        key = (source, gpu, phase)
        ratio = np.array([value for value, _ in ratios[key]])
        fresh = np.array([value for value, fitted in ratios[key] if not fitted])
        line = Result(
            profiler=profiler,
            source=source,
            gpu=gpu,
            phase=phase,
            samples=len(ratio),
            refused=len(refused[key]),
            reason=" ".join(refused[key][0].split()) if refused[key] else "",
        )
        if len(ratio):
            line = msgspec.structs.replace(
                line,
                median_error=_rounded(np.median(np.abs(ratio - 1))),
                p90_error=_rounded(np.quantile(np.abs(ratio - 1), 0.9)),
                bias=_rounded(np.median(ratio)),
                held_out=_rounded(np.median(np.abs(fresh - 1))) if len(fresh) else None,
            )
        found.append(line)
    return found


def costs(name: str) -> Callable[[Sample], StepCost] | None:
    """Step costs of an installed profiler, asked once for each (shape, GPU, engine); None: not installed."""
    registry = load_plugins()
    if name not in registry.of_kind("profiler"):
        return None
    profilers: dict[str, Profiler] = {}
    known: dict[tuple[str, ModelShape, str, str], StepCost | ProfileError] = {}

    def cost(one: Sample) -> StepCost:
        key = (one.model, one.shape, one.gpu, one.engine)
        if key not in known:
            try:
                profiler = profilers.setdefault(one.engine, _built(name, one.engine))
                known[key] = profiler.step_cost(
                    one.shape, catalogue.gpu(one.gpu), one.engine, dtype=one.shape.weight_dtype, measure=None
                )
            except ProfileError as error:
                known[key] = error
        found = known[key]
        if isinstance(found, ProfileError):
            raise found
        return found

    def _built(name: str, engine: str) -> Profiler:
        model = registry.options_model("profiler", name)
        given = {"backend": engine} if "backend" in model.model_fields else {}
        built: Profiler = registry.build("profiler", name, model.model_validate(given))
        return built

    return cost


def _rounded(value: float) -> float:
    return round(float(value), 3)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="a JSON line for each (source, GPU, phase)")
    asked = parser.parse_args(arguments)
    try:
        measured = list(samples())
    except DataMissing as missing:
        print(f"skipped: {missing}", file=sys.stderr)
        return 0
    for name in PROFILERS:
        cost = costs(name)
        if cost is None:
            print(f"skipped: profiler {name!r} is not installed", file=sys.stderr)
            continue
        for line in results(name, cost, measured):
            if asked.json:
                print(msgspec.json.encode(line).decode())
            else:
                print(
                    f"{line.profiler:15} {line.source:10} {line.gpu:10} {line.phase:13} {line.samples:4} "
                    f"median {line.median_error} p90 {line.p90_error} bias {line.bias} "
                    f"held out {line.held_out} refused {line.refused} {line.reason[:80]}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
