"""Every model of a config with every GPU on offer: what can be measured, and what is believed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coral.core.config import Config
from coral.core.generate.engines import EnginesOf
from coral.core.generate.specs import model_specs
from coral.core.plugins import Registry
from coral.core.profile import catalogue
from coral.core.profile.comparison import Comparison, compare
from coral.core.profile.measure import cpu_model
from coral.core.profile.records import Record
from coral.errors import UsageError
from coral.hookspecs.options import near_miss
from coral.hookspecs.profiler import StepCost
from coral.types.hardware import Gpu, Offer
from coral.types.model import ModelSpec

Say = Callable[[str], None]


class Pair:
    """One model on one GPU."""

    def __init__(self, engines: EnginesOf, model: ModelSpec, gpu: Gpu, say: Say) -> None:
        self.model = model
        self.gpu = gpu
        self._engines = engines
        self._say = say
        able = engines.capabilities(model, gpu)
        self.refusal = able.refusal
        self.max_tp = able.max_tp

    def cost(self) -> StepCost:
        """Raises ProfileError where no profiler of the config knows the pair."""
        self._say(f"step cost of {self.model.name} on {self.gpu.name}")
        return self._engines.cost(self.model, self.gpu)

    def record(self, *, fresh: bool) -> Record | None:
        """The measuring run, an earlier one unless `fresh`; None where it cannot be measured here."""
        if self.refusal is not None:
            return None
        self._say(f"timing steps of {self.model.name} on {self.gpu.name}")
        measure = self._engines.measuring(self.model)
        asked = (self.model.shape, self.gpu, self._engines.dtype(self.model))
        measured = measure.again(*asked) if fresh else measure(*asked)
        if measured is None:
            return None
        return Record(
            model=self.model.name,
            device=self.gpu.name,
            engine=self.model.engine,
            shape=self.model.shape,
            dtype=self._engines.dtype(self.model),
            machine=cpu_model(),
            measurements=measured,
        )

    def checked(self) -> Comparison | None:
        """The step cost beside a new run, which changes nothing that is kept; None as in `record`."""
        if self.refusal is not None:
            return None
        cost = self.cost()
        self._say(f"timing steps of {self.model.name} on {self.gpu.name}")
        measured = self._engines.measuring(self.model).again(
            self.model.shape, self.gpu, self._engines.dtype(self.model), keep=False
        )
        return None if measured is None else compare(cost, measured)


def pairs(
    config: Config,
    registry: Registry,
    offers: Sequence[Offer],
    gpus: Mapping[str, Gpu],
    *,
    model: str | None = None,
    gpu: str | None = None,
    say: Say = lambda text: None,
) -> list[Pair]:
    """Of all models and all GPUs on offer, or of one. Raises UsageError for one that there is not."""
    specs = model_specs(config)
    names = sorted({offer.machine_type.gpu for offer in offers})
    specs = tuple(one for one in specs if model in (None, one.name))
    if not specs:
        raise UsageError(
            f"the config has no model {model!r}", mend=_near(model, [one.name for one in config.models])
        )
    chosen = [name for name in names if gpu in (None, name)]
    if not chosen:
        raise UsageError(f"no offer has the GPU {gpu!r}", mend=_near(gpu, names))
    known = {name: gpus[name] if name in gpus else catalogue.gpu(name) for name in chosen}
    engines = EnginesOf(config, registry)
    return [Pair(engines, spec, known[name], say) for spec in specs for name in chosen]


def _near(word: str | None, known: Sequence[str]) -> str:
    near = near_miss(word or "", known)
    return f"did you mean {near!r}?" if near else f"there is: {', '.join(known)}"
