"""The planner as a real process, with this test as its coordinator."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq
from msgspec.structs import replace

from coral.core.config import Config, open_config
from coral.core.generate.assemble import prepare
from coral.core.plugins import Registry
from coral.core.serve.net.wire import (
    AnyMessage,
    Message,
    PlanAnswer,
    PlanAsk,
    PlannerHello,
    Shutdown,
    decode,
    encode,
)
from coral.core.serve.planner.setup import Chosen, PlannerSetup, planner_argv
from coral.core.serve.process_tree import descendants
from coral.hookspecs.planner import View
from coral.testing.processes import alive
from coral.testing.tables import offer, spec, view
from coral.types.plan import Plan

MISBEHAVING = Path(__file__).parents[2] / "solve" / "misbehaving.py"

PLANNER = """
import time
from coral.hookspecs import hookimpl
from coral.hookspecs.component import Component
from coral.hookspecs.options import Options
from coral.types.plan import Plan

class SlowOptions(Options):
    pass

class Slow:
    def plan(self, view, library, solver):
        if not view.models:
            raise RuntimeError("nothing to plan for")
        if view.models[0].name == "hang":
            time.sleep(600)
        time.sleep(view.models[0].demand.requests_per_s)
        return Plan(planner="slow", machines=(), instances=(), services=(), price_usd_h=0.0,
                    initialization_usd_h=0.0, certificate=None, notes=(view.models[0].name,))

@hookimpl
def coral_planners():
    return [Component(name="slow", summary="for a test", options=SlowOptions, build=lambda options: Slow())]
"""

CONFIG = """
models:
  - name: tiny
    source: ./nowhere
    slo: {prefill: 2s, decode: 200ms}
    demand: {requests_per_s: 2, input_tokens: 200, output_tokens: 50}
    shape: {architecture: LlamaForCausalLM, layers: 8, hidden: 2048, heads: 16, kv_heads: 8, head_dim: 128,
            intermediate: 8192, vocab: 32000, max_positions: 4096}
generate: {max_nodes: 2, memory_ratio: 1000}
engine: {use: mock}
clouds:
  - use: static
    offers:
      - {type: one, gpu: L4, gpus: 1, region: r, price: 0.8, obtainable: 4, nic: 10Gbit/s}
"""


class Coordinator:
    """The ROUTER that a planner dials."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.peer = b""

    def next(
        self, kind: type[AnyMessage] | tuple[type[AnyMessage], ...], within_s: float = 60.0
    ) -> AnyMessage:
        deadline = time.monotonic() + within_s
        while (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(int(left * 1000) + 1):
                self.peer, frame = self._socket.recv_multipart()
                message = decode(frame)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind} within {within_s} s")

    def send(self, message: Message) -> None:
        self._socket.send_multipart([self.peer, encode(message)])

    def ask(self, number: int, world: View) -> None:
        self.send(PlanAsk(ask=number, view=msgspec.to_builtins(world)))

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    one = Coordinator()
    yield one
    one.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """An empty one: nothing here asks for a template."""
    from coral.core.generate.manifest import FORMAT, Manifest

    folder = tmp_path / "library"
    folder.mkdir()
    manifest = Manifest(format=FORMAT, coral="0", store="store", entries={})
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return folder


@pytest.fixture
def argv(tmp_path: Path, library: Path, coordinator: Coordinator) -> tuple[str, ...]:
    return argv_of(tmp_path, library, coordinator)


def argv_of(
    tmp_path: Path,
    library: Path,
    coordinator: Coordinator,
    *,
    solve_limit_s: float = 0.0,
    grace_s: float = 30.0,
) -> tuple[str, ...]:
    file = tmp_path / "slow_planner.py"
    file.write_text(PLANNER)
    setup = PlannerSetup(
        planner=Chosen(use="slow"),
        plugin_paths=(str(file),),
        beat_s=0.2,
        solve_limit_s=solve_limit_s,
        grace_s=grace_s,
    )
    return planner_argv(setup, coordinator=coordinator.address, library=library)


@pytest.fixture
def started(argv: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    yield from running(argv)


def running(argv: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv)
    yield process
    process.kill()
    process.wait(10)


def world(name: str, seconds: float) -> View:
    return view([spec(name, seconds)], [offer("small", 1.0)])


def test_it_says_hello_and_answers(coordinator: Coordinator, started: subprocess.Popen[bytes]) -> None:
    hello = coordinator.next(PlannerHello)
    assert isinstance(hello, PlannerHello)
    assert hello.pid == started.pid
    assert coordinator.peer == f"planner-{started.pid}".encode()
    coordinator.ask(7, world("m", 0.0))
    answer = coordinator.next(PlanAnswer)
    assert isinstance(answer, PlanAnswer)
    assert answer.ask == 7
    assert answer.plan is not None
    assert msgspec.convert(answer.plan, Plan).notes == ("m",)
    coordinator.send(Shutdown(reason="done"))
    assert started.wait(10) == 0


def test_it_beats_while_it_plans_and_the_newest_ask_counts(
    coordinator: Coordinator, started: subprocess.Popen[bytes]
) -> None:
    from coral.core.serve.net.wire import Heartbeat

    coordinator.next(PlannerHello)
    coordinator.ask(1, world("first", 1.5))
    coordinator.ask(2, world("second", 0.0))
    coordinator.ask(3, world("third", 0.0))
    coordinator.next(Heartbeat)
    answers = [coordinator.next(PlanAnswer) for _ in range(3)]
    assert all(isinstance(one, PlanAnswer) for one in answers)
    by_ask = {one.ask: one for one in answers if isinstance(one, PlanAnswer)}
    assert "newer ask" in by_ask[2].error
    assert by_ask[1].plan is not None
    assert by_ask[3].plan is not None


def test_what_goes_wrong_is_answered(coordinator: Coordinator, started: subprocess.Popen[bytes]) -> None:
    coordinator.next(PlannerHello)
    coordinator.ask(1, View(models=(), offers=()))
    failed = coordinator.next(PlanAnswer)
    assert isinstance(failed, PlanAnswer)
    assert "nothing to plan for" in failed.error
    coordinator.send(PlanAsk(ask=2, view={"models": 3}))
    malformed = coordinator.next(PlanAnswer)
    assert isinstance(malformed, PlanAnswer)
    assert "malformed" in malformed.error
    assert started.poll() is None


def test_terminated_in_the_middle_of_a_plan(
    coordinator: Coordinator, started: subprocess.Popen[bytes]
) -> None:
    coordinator.next(PlannerHello)
    coordinator.ask(1, world("hang", 0.0))
    time.sleep(0.3)
    started.send_signal(signal.SIGTERM)
    assert started.wait(10) == 0


def test_the_kernel_ends_a_plan_that_takes_too_long(
    tmp_path: Path, library: Path, coordinator: Coordinator
) -> None:
    for process in running(argv_of(tmp_path, library, coordinator, solve_limit_s=0.5)):
        coordinator.next(PlannerHello)
        coordinator.ask(1, world("hang", 0.0))
        assert process.wait(10) == -signal.SIGALRM


def test_it_leaves_a_silent_coordinator(tmp_path: Path, library: Path, coordinator: Coordinator) -> None:
    for process in running(argv_of(tmp_path, library, coordinator, grace_s=0.5)):
        coordinator.next(PlannerHello)
        assert process.wait(10) == 0


def test_it_leaves_with_its_parent(coordinator: Coordinator, argv: tuple[str, ...]) -> None:
    """Also in the middle of a plan."""
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(600)"
    parent = subprocess.Popen(["python3", "-c", code, *argv])
    hello = coordinator.next(PlannerHello)
    assert isinstance(hello, PlannerHello)
    coordinator.ask(1, world("hang", 0.0))
    time.sleep(0.3)
    parent.kill()
    parent.wait(10)
    deadline = time.monotonic() + 10
    while alive(hello.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_coral_planner_over_a_library_on_disk(tmp_path: Path, coordinator: Coordinator) -> None:
    config, registry = parsed(tmp_path)
    offers = asyncio.run(registry.build("cloud", "static", config.clouds[0].options).offers())
    models, library = prepare(config, registry, offers, {})
    argv = planner_argv(PlannerSetup(), coordinator=coordinator.address, library=library.folder)
    for process in running(argv):
        hello = coordinator.next(PlannerHello)
        assert isinstance(hello, PlannerHello)
        assert hello.templates > 0
        coordinator.ask(1, View(models=models, offers=tuple(offers), options=config.plan_options()))
        answer = coordinator.next(PlanAnswer)
        assert isinstance(answer, PlanAnswer)
        assert answer.plan is not None, answer.error
        plan = msgspec.convert(answer.plan, Plan)
        assert plan.satisfied
        assert plan.certificate is not None
        assert plan.price_usd_h == pytest.approx(0.8)
        process.terminate()
        assert process.wait(10) == 0


@pytest.mark.parametrize("how", ["abort", "hang", "lie"])
def test_a_solver_that_misbehaves_is_answered_greedily(
    tmp_path: Path, coordinator: Coordinator, how: str
) -> None:
    """It takes the planner along as little as the coordinator; and it is gone when the planner is."""
    config, registry = parsed(tmp_path)
    offers = asyncio.run(registry.build("cloud", "static", config.clouds[0].options).offers())
    models, library = prepare(config, registry, offers, {})
    setup = PlannerSetup(
        solver=Chosen(use="misbehaving", options={"how": how}),
        solver_time_limit_s=1.0,
        plugin_paths=(str(MISBEHAVING),),
    )
    ask = View(models=models, offers=tuple(offers), options=replace(config.plan_options(), time_limit_s=1.0))
    for process in running(planner_argv(setup, coordinator=coordinator.address, library=library.folder)):
        coordinator.next(PlannerHello)
        for number in (1, 2):
            coordinator.ask(number, ask)
            answer = coordinator.next(PlanAnswer)
            assert isinstance(answer, PlanAnswer)
            assert answer.plan is not None, answer.error
            plan = msgspec.convert(answer.plan, Plan)
            assert plan.satisfied
            assert plan.price_usd_h == pytest.approx(0.8)
            assert any("greedily" in note for note in plan.notes)
            assert any("solver" in note and "failed" in note for note in plan.notes), plan.notes
        below = descendants(process.pid)
        process.kill()
        process.wait(10)
        assert gone(below)


def gone(pids: Sequence[int], within_s: float = 5.0) -> bool:
    until = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def parsed(tmp_path: Path) -> tuple[Config, Registry]:
    file = tmp_path / "coral.yaml"
    file.write_text(CONFIG)
    opened = open_config(file, [f"state.folder={tmp_path / 'state'}"])
    return opened.config, opened.registry
