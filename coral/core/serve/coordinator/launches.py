"""How the processes of instances are started: schedulers by us, workers by their engine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from coral.core.operate.slots import Claim
from coral.core.plugins.interpreter import in_environment
from coral.core.serve import instance as scheduler_process
from coral.core.serve import worker as worker_process
from coral.core.serve.coordinator.network import Network
from coral.core.serve.coordinator.place import Place
from coral.core.serve.coordinator.specs import InstanceLayout, ServingModel, StepLimits, layout
from coral.core.serve.net.keys import ProcessKeys
from coral.errors import EngineError
from coral.hookspecs.engine import Engine, Launch
from coral.types.hardware import Gpu
from coral.types.placement import Template

WORKER = "coral.core.serve.worker.process"
SCHEDULER = "coral.core.serve.instance.scheduler"


class EngineLaunches:
    """`coral.core.serve.coordinator.instances.Launches` of a config. Mappings are by model name."""

    def __init__(
        self,
        models: Mapping[str, ServingModel],
        fingerprints: Mapping[str, str],
        engines: Mapping[str, Engine],
        limits: Mapping[str, Mapping[str, StepLimits]],
        gpus: Mapping[str, Gpu],
        *,
        coordinator: str,
        sockets: str,
        plugin_paths: Sequence[str],
        grace_s: float,
        start_timeout_s: float,
        channel: str = "auto",
        trusted_network: bool = False,
        generation: int,
        place: Callable[[str], Place] = lambda machine: Place(),
        network: Network | None = None,
    ) -> None:
        """`generation`: of every instance started here; one that fails is followed by another under a new
        id, and one that another coordinator starts under the same id is told from it by this. `place`: of a
        machine; where there are others than this one, `network` has their keys."""
        self._models = models
        self._fingerprints = fingerprints
        self._engines = engines
        self._limits = limits
        self._gpus = gpus
        self._coordinator = coordinator
        self._sockets = sockets
        self._plugin_paths = plugin_paths
        self._grace_s = grace_s
        self._channel = channel
        self._trusted_network = trusted_network
        self._start_timeout_s = start_timeout_s
        self._generation = generation
        self._place = place
        self._network = network

    def fingerprint(self, model: str) -> str:
        return self._fingerprints[model]

    def layout(self, instance: str, template: Template, claim: Claim) -> InstanceLayout:
        return layout(
            template,
            claim,
            self._models[template.model],
            instance=instance,
            generation=self._generation,
            gpus=self._gpus,
            limits=self._limits[template.model],
        )

    def scheduler(self, layout: InstanceLayout) -> Launch:
        place, keys = self._place(layout.scheduler_machine), self._keys(layout)
        arguments = scheduler_process.command(
            coordinator=self._network.control_address if self._network and keys else self._coordinator,
            instance=layout.spec.instance,
            generation=layout.spec.generation,
            host=place.host,
            sockets="" if keys else self._sockets,
            start_timeout_s=self._start_timeout_s,
            grace_s=self._grace_s,
        )
        env = keys.environment() if keys else {}
        return Launch(argv=(place.python, *arguments), env=env, preload=(SCHEDULER,))

    def worker(self, layout: InstanceLayout, seat: int, scheduler_address: str) -> Launch:
        spec = layout.seats[seat].spec
        place, keys = self._place(layout.seats[seat].machine_id), self._keys(layout)
        arguments = worker_process.command(
            scheduler=scheduler_address,
            node=spec.node,
            plugin_paths=self._plugin_paths,
            host=place.host,
            sockets="" if keys else self._sockets,
            channel=self._channel_of(layout),
            grace_s=self._grace_s,
        )
        launch = self._engines[spec.model].launch(arguments, threads=spec.threads, devices=spec.devices)
        if launch.preload:
            launch = replace(launch, preload=(WORKER, *launch.preload))
        launch = in_environment(launch, self._models[spec.model].python, spec.engine)
        if launch.argv[0] == sys.executable:
            launch = replace(launch, argv=(place.python, *launch.argv[1:]))
        if keys is not None:
            launch = replace(launch, env={**launch.env, **keys.of_worker().environment()})
        return launch

    def _keys(self, layout: InstanceLayout) -> ProcessKeys | None:
        """Those of an instance's scheduler; None where all of the instance is on this machine."""
        machines = {layout.scheduler_machine, *(seat.machine_id for seat in layout.seats)}
        if not any(self._place(machine).network for machine in machines):
            return None
        if self._network is None:
            raise EngineError(
                f"instance {layout.spec.instance} is to run on another machine, and nothing listens there",
                mend="give serve.listen",
            )
        return self._network.keys(layout.spec.model, layout.spec.instance, layout.spec.generation)

    def _channel_of(self, layout: InstanceLayout) -> str:
        """How payloads go between the workers of an instance."""
        if self._channel != "auto":
            return self._channel
        cuda = all(seat.spec.device_kind == "cuda" for seat in layout.seats)
        alone = len({seat.machine_id for seat in layout.seats}) == 1
        several = len(layout.seats) > 1
        return "nccl" if cuda and several and (alone or self._trusted_network) else "zmq"
