"""The coordinator: assembles control socket, requests, controller, planner link, and serves them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zmq

from coral.core.config import Config, ModelSection
from coral.core.plugins import Registry
from coral.core.serve import agent
from coral.core.serve.coordinator.adoption import Adopted, Adoption
from coral.core.serve.coordinator.configured import cloud_names, fingerprints, serving_models
from coral.core.serve.coordinator.control import Control
from coral.core.serve.coordinator.controller import Controller, ControllerOptions
from coral.core.serve.coordinator.journal import Journal
from coral.core.serve.coordinator.later import LaterLaunches, LaterPlans
from coral.core.serve.coordinator.launches import EngineLaunches
from coral.core.serve.coordinator.memory import Memory
from coral.core.serve.coordinator.network import network_of
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
from coral.core.serve.coordinator.run_folder import RunFolder, deployment_name
from coral.core.serve.coordinator.serving import ServedModel, TokenSink
from coral.core.serve.coordinator.state import state
from coral.core.serve.coordinator.switchboard import Switchboard
from coral.core.serve.coordinator.tokens import TokenSocket
from coral.core.serve.planner.setup import planner_argv
from coral.core.serve.store import plans
from coral.core.serve.store.database import FILE, open_store
from coral.core.serve.store.history import history, past_plan, summary, whole
from coral.errors import RequestError, StoreError
from coral.hookspecs.cloud import Cloud
from coral.hookspecs.engine import Engine, Launch
from coral.hookspecs.planner import View
from coral.hookspecs.router import Router
from coral.types.plan import Plan
from coral.types.request import GenerateRequest

TICK_S = 1.0

Progress = Callable[[TemplateProgress], None]


class Coordinator:
    """`coral.core.serve.coordinator.serving.Serving`, and what makes it true.

    Made and used inside a running event loop. `folder` is what the config's relative paths count from.
    `dry`: only for a plan; nothing is rented, nothing of an earlier run is touched.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        folder: Path,
        journal: Journal,
        progress: Progress,
        *,
        dry: bool = False,
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
        state_folder = Path(config.state.folder)
        self._run = RunFolder(state_folder, passing=dry)
        say = lambda text: journal.say("machine", text, fault=True)  # noqa: E731
        try:
            self._store = None if dry else open_store(state_folder / FILE, say)
        except StoreError:
            self._run.close()
            raise
        self._memory = Memory(self._store, "" if dry else deployment_name(state_folder))
        self._adopted = Adopted()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._switchboard = Switchboard()
        self._network = network_of(config, self._store, journal)
        self._control = Control(
            self._context,
            self._run.address("control"),
            self._switchboard.on_message,
            self._network.other_protocol if self._network else lambda peer, version: None,
        )
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
        self._tokens = TokenSocket(
            self._context, self._run.address("tokens"), self._requests.tokens, self._switchboard.may_push
        )
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
            deployment=self._memory.deployment,
            adopted=self._adopted,
        )

    async def plans(self, newest: int) -> list[dict[str, object]]:
        state = Path(self._config.state.folder)
        return [summary(one) for one in await asyncio.to_thread(history, state, newest=newest)]

    async def past_plan(self, number: int) -> dict[str, object]:
        return whole(await asyncio.to_thread(past_plan, Path(self._config.state.folder), number))

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
        if self._network is not None:
            self._network.open(self._context, self._control, self._tokens)
        launches, planning = LaterLaunches(), LaterPlans()
        controller = self._controller = self._make_controller(launches, planning)
        await self._take_over(controller)
        self._switchboard.connect(controller, self._network)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick(controller), name="tick")
            ready = await self._prepare()
            link = self._start_link(ready)
            group.create_task(link.run(), name="planner")
            launches.now, planning.now = (
                self._launches(ready, controller),
                Planning(link, Path(ready.library)),
            )
            controller.models = ready.models
            self._resume_plan(controller)
            group.create_task(controller.run(), name="controller")
            self.phase = "starting"
            await controller.up
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
            if self._network is not None:
                self._network.close()
            self._context.destroy(linger=0)
            if self._store is not None:
                self._store.close()
            self._run.close()

    # ------------------------------------------------------------ inside

    def _router(self) -> Router:
        """One of its own: for a model, and for its decode legs."""
        router: Router = self._registry.build("router", self._config.router.use, self._config.router.options)
        return router

    async def _take_over(self, controller: Controller) -> None:
        """What an earlier coordinator has left running is ours again, or given back."""
        assert self._store is not None  # this is no dry run
        clouds = dict(zip(cloud_names(self._config), self._clouds, strict=True))
        adoption = Adoption(self._store, clouds, controller.machines, controller.instances, self._journal)
        self._adopted = await adoption.adopt(fingerprints(self._config))

    def _resume_plan(self, controller: Controller) -> None:
        """Where something was taken over, the last plan is carried out until there is another."""
        assert self._store is not None
        models = {model.name for model in self._config.models}
        if not self._adopted.machines:
            return
        try:
            last = next(iter(plans.plans(self._store, newest=1)), None)
        except (StoreError, msgspec.DecodeError):
            return  # what runs stays as it is until there is another
        if last is not None and models >= {one.template.model for one in last.plan.instances}:
            controller.resume(last.plan)

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

    def _launches(self, ready: Prepared, controller: Controller) -> EngineLaunches:
        config, serve = self._config, self._config.serve
        return EngineLaunches(
            serving_models(config, ready),
            fingerprints(config),
            {model.name: self._engine(model) for model in config.models},
            ready.limits,
            {gpu.name: gpu for gpu in ready.gpus},
            coordinator=self._control.address,
            sockets=str(self._run.sockets),
            plugin_paths=[str(path) for path in config.plugins.paths],
            grace_s=serve.grace,
            start_timeout_s=serve.start_timeout,
            channel=serve.channel,
            trusted_network=serve.trusted_network,
            generation=int(self._started),
            place=controller.machines.place,
            network=self._network,
        )

    def _make_controller(self, launches: LaterLaunches, planning: LaterPlans) -> Controller:
        config, serve = self._config, self._config.serve
        return Controller(
            (),
            self._clouds,
            launches,
            Launch(argv=agent.command(self._control.address, grace_s=serve.grace, logs=self._run.logs)),
            self._control,
            planning,
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
                return_timeout_s=serve.grace,
            ),
            tokens_address=self._tokens.address_of,
            memory=self._memory,
            cloud_names=cloud_names(config),
        )

    def _engine(self, section: ModelSection) -> Engine:
        use = self._config.engine_of(section)
        engine: Engine = self._registry.build("engine", use.use, use.options)
        return engine

    async def _tick(self, controller: Controller) -> None:
        while True:
            controller.tick()
            for machine in self._network.shut_out() if self._network else ():
                controller.machines.shut_out(machine)
            self._requests.tick()
            if self._link is not None:
                self._control.beat(self._link.peers())
            await asyncio.sleep(TICK_S)
