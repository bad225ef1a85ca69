"""The coordinator: assembles control socket, requests, controller, planner link, and serves them."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import zmq

from coral.core.config import Config, ModelSection
from coral.core.plugins import Registry
from coral.core.serve import agent
from coral.core.serve.coordinator.control import Control
from coral.core.serve.coordinator.controller import Controller, ControllerOptions
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.launches import EngineLaunches
from coral.core.serve.coordinator.planner_link import PlannerLink
from coral.core.serve.coordinator.planning import Planning, answer_s, planner_deadline, planner_setup
from coral.core.serve.coordinator.preparation import (
    PreparationAsk,
    Prepared,
    Said,
    TemplateProgress,
    TokenizerReady,
    prepared,
)
from coral.core.serve.coordinator.requests import RequestOptions, RequestTable
from coral.core.serve.coordinator.run_folder import RunFolder
from coral.core.serve.coordinator.serving import ServedModel, TokenSink
from coral.core.serve.coordinator.specs import ServingModel
from coral.core.serve.coordinator.state import state
from coral.core.serve.coordinator.switchboard import Switchboard
from coral.core.serve.coordinator.tokens import TokenSocket
from coral.core.serve.planner.setup import planner_argv
from coral.errors import RequestError
from coral.hookspecs.cloud import Cloud
from coral.hookspecs.engine import Engine, Launch
from coral.hookspecs.planner import View
from coral.hookspecs.router import Router
from coral.types.model import ModelSpec
from coral.types.plan import Plan
from coral.types.request import GenerateRequest

TICK_S = 1.0

Progress = Callable[[TemplateProgress], None]


class Coordinator:
    """`coral.core.serve.coordinator.serving.Serving`, and what makes it true.

    Made and used inside a running event loop. `folder` is what the config's relative paths count from.
    """

    def __init__(
        self, config: Config, registry: Registry, folder: Path, journal: Journal, progress: Progress
    ) -> None:
        self._config = config
        self._registry = registry
        self._folder = folder
        self._journal = journal
        self._progress = progress
        self._started = time.time()
        self._tokenizers: dict[str, str] = {}
        self._longest: dict[str, int] = {}
        """The longest request that instances of a model hold, or held when there last were any."""
        self._clouds: list[Cloud] = [registry.build("cloud", use.use, use.options) for use in config.clouds]
        self._run = RunFolder(Path(config.state.folder))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._switchboard = Switchboard()
        self._control = Control(self._context, self._run.address("control"), self._switchboard.on_message)
        self._requests = RequestTable(
            {model.name: self._router() for model in config.models},
            registry.events,
            RequestOptions.of(config.serve, {model.name: model.priority for model in config.models}),
            decode_routers={
                model.name: self._router() for model in config.models if "decode" in config.phases_of(model)
            },
        )
        self._requests.expect_instances(self._gets_an_instance)
        self._switchboard.requests = self._requests
        self._tokens = TokenSocket(self._context, self._run.address("tokens"), self._requests.tokens)
        self._controller: Controller | None = None
        self._link: PlannerLink | None = None
        self.tokenizers_ready = asyncio.Event()
        """Set when every model's config and tokenizer are at hand: the front door can open."""
        self.up = asyncio.Event()
        """Set when everything the first plan wants has been ready."""
        self.phase = "preparing"

    # ------------------------------------------------------------ Serving

    def models(self) -> Sequence[ServedModel]:
        ready: dict[str, int] = {}
        for one in self._controller.instances.all().values() if self._controller else ():
            if one.state == "ready" and one.ready is not None:
                most = min(one.ready.max_request_tokens, one.layout.spec.max_model_len)
                ready[one.model] = max(ready.get(one.model, 0), most)
        self._longest.update(ready)
        return [
            ServedModel(
                name=name,
                folder=folder,
                max_request_tokens=self._longest.get(name, 0),
                created=int(self._started),
                ready=name in ready,
                coming=self._gets_an_instance(name),
            )
            for name, folder in self._tokenizers.items()
        ]

    def _gets_an_instance(self, model: str) -> bool:
        """Whether the plan wants instances of a model that has been up."""
        if self.plan is None or self.phase == "ending" or model not in self._longest:
            return False
        return any(planned.count and planned.template.model == model for planned in self.plan.instances)

    def state(self) -> dict[str, object]:
        link = self._link
        return state(
            phase=self.phase,
            started_s=self._started,
            pid=os.getpid(),
            models=self.models(),
            controller=self._controller,
            requests=self._requests,
            planner={"pid": link.pid, "state": link.state, "restarts": link.restarts} if link else {},
            journal=self._journal,
        )

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        if self.phase == "ending":
            raise RequestError("The server is shutting down.", status=503, code="service_unavailable")
        self._requests.submit(request, sink)

    def abort(self, request: str, *, stalled: bool = False) -> None:
        self._requests.abort(request, stalled=stalled)

    @property
    def plan(self) -> Plan | None:
        return self._controller.plan if self._controller else None

    # ------------------------------------------------------------ life

    async def live(self) -> None:
        """Prepare, plan, carry out, until cancelled. Raises CoralError where it cannot come up."""
        for cloud in self._clouds:
            await self._give_back_leftovers(cloud)
        ready = await self._prepare()
        async with asyncio.TaskGroup() as group:
            link = self._start_link(ready)
            group.create_task(link.run(), name="planner")
            self._controller = self._switchboard.controller = self._make_controller(ready, link)
            group.create_task(self._tick(), name="tick")
            group.create_task(self._controller.run(), name="controller")
            self.phase = "starting"
            await self._controller.up
            self.phase = "up"
            self.up.set()

    async def dry_plan(self) -> Plan:
        """The plan that would be carried out, without renting anything."""
        ready = await self._prepare()
        link = self._start_link(ready)
        running = asyncio.create_task(link.run(), name="planner")
        try:
            offers = [offer for cloud in self._clouds for offer in await cloud.offers()]
            view = View(models=ready.models, offers=tuple(offers), options=self._config.plan_options())
            return await link.ask(view, patience_s=answer_s(self._config))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def end_admission(self) -> None:
        """Take no more requests, start nothing more."""
        self.phase = "ending"
        if self._controller is not None:
            self._controller.stop()

    async def close(self) -> None:
        """Give all machines back; what is still in flight ends with an error. After `live` has ended.

        Raises CloudError where a cloud did not take its machines back.
        """
        self._requests.fail_all("The server is shutting down.")
        try:
            if self._controller is not None:
                self._controller.instances.end_all()
                await self._controller.machines.give_back_all()
        finally:
            self._control.close()
            self._tokens.close()
            self._context.destroy(linger=0)
            self._run.close()

    # ------------------------------------------------------------ inside

    def _router(self) -> Router:
        """One of its own: for a model, and for its decode legs."""
        router: Router = self._registry.build("router", self._config.router.use, self._config.router.options)
        return router

    async def _give_back_leftovers(self, cloud: Cloud) -> None:
        left = [machine.id for machine in await cloud.machines()]
        if left:
            self._journal.say("machine", f"giving back what an earlier run left: {', '.join(left)}")
            await cloud.release(left)

    async def _prepare(self) -> Prepared:
        offers = [offer for cloud in self._clouds for offer in await cloud.offers()]
        self._journal.say("model", "preparing " + ", ".join(model.name for model in self._config.models))
        ask = PreparationAsk(
            config=self._config.model_dump(mode="json"),
            folder=str(self._folder),
            plugin_paths=tuple(str(path) for path in self._config.plugins.paths),
            offers=tuple(offers),
            gpus=tuple(gpu for cloud in self._clouds for gpu in cloud.gpus()),
        )
        return await prepared(ask, self._run.logs / "preparation.log", self._on_report)

    def _on_report(self, report: Said | TokenizerReady | TemplateProgress) -> None:
        match report:
            case Said(text=text):
                self._journal.say("model", text)
            case TokenizerReady(model=model, folder=folder):
                self._tokenizers[model] = folder
                if len(self._tokenizers) == len(self._config.models):
                    self.tokenizers_ready.set()
            case TemplateProgress():
                self._progress(report)

    def _start_link(self, ready: Prepared) -> PlannerLink:
        self._link = self._switchboard.planner = PlannerLink(
            planner_argv(
                planner_setup(self._config),
                coordinator=self._control.address,
                library=Path(ready.library),
            ),
            self._control,
            self._journal,
            self._run.logs / "planner.log",
            planner_deadline(self._config),
        )
        return self._link

    def _make_controller(self, ready: Prepared, link: PlannerLink) -> Controller:
        config, serve = self._config, self._config.serve
        sections = {model.name: model for model in config.models}
        launches = EngineLaunches(
            {
                spec.name: self._serving_model(spec, sections[spec.name], ready.sources)
                for spec in ready.models
            },
            {name: self._engine(section) for name, section in sections.items()},
            ready.limits,
            {gpu.name: gpu for gpu in ready.gpus},
            coordinator=self._control.address,
            plugin_paths=[str(path) for path in config.plugins.paths],
            grace_s=serve.grace,
            start_timeout_s=serve.start_timeout,
            channel=serve.channel,
            trusted_network=serve.trusted_network,
        )
        return Controller(
            ready.models,
            self._clouds,
            launches,
            Launch(argv=agent.command(self._control.address, grace_s=serve.grace, logs=self._run.logs)),
            self._control,
            Planning(link, Path(ready.library)),
            self._requests,
            self._registry.events,
            self._journal,
            ControllerOptions(
                plan=config.plan_options(),
                every_s=config.plan.every,
                start_timeout_s=serve.start_timeout,
                drain_timeout_s=serve.drain_timeout,
                floor=serve.floor,
                planner_patience_s=answer_s(config),
            ),
            tokens_address=self._tokens.address,
        )

    def _engine(self, section: ModelSection) -> Engine:
        use = self._config.engine_of(section)
        engine: Engine = self._registry.build("engine", use.use, use.options)
        return engine

    def _serving_model(
        self, spec: ModelSpec, section: ModelSection, sources: Mapping[str, str]
    ) -> ServingModel:
        use = self._config.engine_of(section)
        most = spec.shape.max_positions
        return ServingModel(
            name=spec.name,
            source=sources[spec.name],
            layers=spec.shape.layers,
            max_model_len=min(section.max_model_len or most, most),
            expected_output_tokens=math.ceil(spec.demand.output_tokens),
            dtype=section.dtype,
            engine=use.use,
            engine_options=use.options.model_dump(mode="json"),
            engine_args=use.args,
            python=str(use.python) if use.python else None,
            kv_lease_s=self._config.serve.kv_lease,
        )

    async def _tick(self) -> None:
        assert self._controller is not None
        while True:
            self._controller.tick()
            self._requests.tick()
            if self._link is not None:
                self._control.beat(self._link.peers())
            await asyncio.sleep(TICK_S)
