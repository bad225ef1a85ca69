"""The contract of engines: both halves, on a tiny model."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
import pytest

from coral.errors import EngineError, NoRoom
from coral.hookspecs.engine import Engine, StageRunner
from coral.testing.engine_kv import PROMPTS, KvContract, asked
from coral.testing.generation import Load, Route, cut, greedy, tokens
from coral.types.hardware import Gpu
from coral.types.model import ModelShape
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Chunk, StageSpec


class EngineContract(KvContract):
    """Needs the fixtures `engine` (coordinator's half), `load` (worker's half), and `stage`: a StageSpec of
    all layers of a tiny model of at least 100 tokens vocabulary and 2 layers on one CPU node, with
    `max_model_len` of 64 or more, steps of 64 tokens and 4 requests or more, and memory for at least
    4 sequences of 64 tokens and at most a few thousand. Token ids 4 to 90 are used as prompts.

    The tests of KV that is handed over are in `coral.testing.engine_kv`.
    """

    @pytest.fixture
    def engine(self) -> Engine:
        self._undefined("engine")

    @pytest.fixture
    def stage(self) -> StageSpec:
        self._undefined("stage")

    @pytest.fixture
    def load(self) -> Load:
        self._undefined("load")

    @pytest.fixture
    def runner(self, load: Load, stage: StageSpec) -> Iterator[StageRunner]:
        runner = load(stage)
        yield runner
        runner.close()

    @pytest.fixture
    def whole(self, runner: StageRunner) -> Route:
        """The whole model on one node."""
        return Route([runner])

    @pytest.fixture
    def halves(self, load: Load, stage: StageSpec) -> Iterator[Route]:
        """The model cut after its first layer."""
        route = Route.loaded(load, cut(stage, 1))
        yield route
        route.close()

    # ------------------------------------------------------------ the coordinator's half

    def test_capabilities(
        self, engine: Engine, stage: StageSpec, tiny_shape: ModelShape, tiny_gpu: Gpu
    ) -> None:
        found = engine.capabilities(tiny_shape, tiny_gpu)
        assert found.version
        assert found.block_size >= 1
        assert found.max_step_tokens >= 1
        assert found.max_step_requests >= 1
        assert found.refusal or stage.dtype in found.dtypes

    def test_launch_keeps_the_arguments(self, engine: Engine) -> None:
        argv = ("-m", "coral.core.serve.worker", "--node", "a b")
        launch = engine.launch(argv, threads=1, devices=(0,))
        assert launch.argv[-len(argv) :] == argv
        assert len(launch.argv) > len(argv), "an interpreter comes first"
        assert all(isinstance(value, str) for value in launch.env.values())

    @pytest.fixture
    def tiny_shape(self, stage: StageSpec) -> ModelShape:
        return ModelShape(
            architecture="LlamaForCausalLM",
            layers=stage.layers_total,
            hidden=64,
            heads=4,
            kv_heads=2,
            head_dim=16,
            intermediate=128,
            vocab=256,
            max_positions=512,
            weight_dtype=stage.dtype,
            kv_dtype=stage.dtype,
            activation_dtype=stage.dtype,
        )

    @pytest.fixture
    def tiny_gpu(self, stage: StageSpec) -> Gpu:
        return Gpu(
            name=stage.node_type.gpu,
            kind=stage.device_kind,
            memory_bytes=stage.memory_bytes,
            memory_bytes_per_s=1e10,
            flops={stage.dtype: 1e10},
            threads=stage.threads,
        )

    # ------------------------------------------------------------ room

    def test_capacity_is_constant(self, whole: Route, runner: StageRunner) -> None:
        before = runner.capacity()
        assert before.blocks >= 1
        assert before.block_size >= 1
        whole.generate([asked("a")])
        whole.open(asked("b"))
        assert runner.capacity() == before

    def test_a_request_takes_the_blocks_it_says(self, runner: StageRunner) -> None:
        size = runner.capacity().block_size
        for reserve in (1, size, size + 1, 2 * size):
            before = runner.stats().free_blocks
            runner.open(asked("a", (5,)), reserve)
            assert before - runner.stats().free_blocks == -(-reserve // size)
            runner.release(["a"])

    def test_no_room_leaves_nothing_reserved(self, runner: StageRunner, stage: StageSpec) -> None:
        opened = self._fill(runner, stage)
        free = runner.stats().free_blocks
        with pytest.raises(NoRoom):
            runner.open(asked("late"), stage.max_model_len)
        assert runner.stats().free_blocks == free
        assert runner.stats().requests == len(opened)
        runner.release(opened)
        runner.open(asked("late"), stage.max_model_len)  # its first try has left no trace

    def test_no_room_to_extend_changes_nothing(self, runner: StageRunner, stage: StageSpec) -> None:
        size = runner.capacity().block_size
        if stage.max_model_len <= size:
            pytest.skip("one block holds the longest sequence: nothing can be extended")
        runner.open(asked("grows", (5,)), 1)
        opened = self._fill(runner, stage)
        held = [f"rest{i}" for i in range(runner.stats().free_blocks)]
        for name in held:
            runner.open(asked(name, (5,)), 1)
        with pytest.raises(NoRoom):
            runner.extend("grows", stage.max_model_len)
        assert runner.stats().free_blocks == 0
        runner.release([*opened, *held])
        runner.extend("grows", stage.max_model_len)
        free = runner.stats().free_blocks
        assert runner.stats().total_blocks - free == -(-stage.max_model_len // size)

    def _fill(self, runner: StageRunner, stage: StageSpec) -> list[str]:
        opened: list[str] = []
        each = -(-stage.max_model_len // runner.capacity().block_size)
        while runner.stats().free_blocks >= each:
            opened.append(f"fill{len(opened)}")
            runner.open(asked(opened[-1], (5,)), stage.max_model_len)
            assert len(opened) <= 100_000, "the tiny stage has too much memory for this suite"
        return opened

    def test_release_frees_all_blocks(self, whole: Route, runner: StageRunner) -> None:
        total = runner.stats().free_blocks
        assert total == runner.stats().total_blocks == runner.capacity().blocks
        whole.generate([asked(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)], chunk=4)
        assert runner.stats().free_blocks == total
        whole.open(asked("half-way"))
        whole.step([("half-way", 0, PROMPTS[0][:3])])
        runner.release(["half-way"])
        assert runner.stats().free_blocks == total
        assert runner.stats().requests == 0

    def test_release_of_unknown_requests_is_ignored(self, runner: StageRunner) -> None:
        runner.open(asked("a"), 16)
        runner.release(["nobody", "a", "a"])
        runner.release(["a"])
        assert runner.stats().free_blocks == runner.stats().total_blocks

    # ------------------------------------------------------------ order

    def test_a_chunk_out_of_order_is_refused(self, whole: Route, runner: StageRunner) -> None:
        expected = tokens(whole.generate([asked("a")])["a"])
        whole.open(asked("b"))
        prompt = PROMPTS[0]
        with pytest.raises(EngineError):
            runner.step([Chunk(request="b", start=2, n=1, token_ids=prompt[2:3])])
        whole.step([("b", 0, prompt[:3])])
        with pytest.raises(EngineError):
            runner.step([Chunk(request="b", start=0, n=3, token_ids=prompt[:3])])
        (first,) = whole.step([("b", 3, prompt[3:])])  # and the right one still goes through
        assert first.token == expected[0]

    def test_a_chunk_beyond_the_reservation_is_refused(self, runner: StageRunner) -> None:
        runner.open(asked("a"), 2)
        with pytest.raises(EngineError):
            runner.step([Chunk(request="a", start=0, n=len(PROMPTS[0]), token_ids=PROMPTS[0])])

    def test_a_chunk_of_an_unknown_request_is_refused(self, runner: StageRunner) -> None:
        with pytest.raises(EngineError):
            runner.step([Chunk(request="nobody", start=0, n=1, token_ids=(5,))])

    # ------------------------------------------------------------ tokens

    def test_chunked_prefill_equals_whole_prefill(self, whole: Route) -> None:
        request = asked("a", PROMPTS[2])
        expected = whole.generate([request])
        for chunk in (1, 4, 5):
            assert whole.generate([request], chunk=chunk) == expected

    def test_a_batch_equals_each_alone(self, whole: Route) -> None:
        requests = [asked(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]
        alone = {r.id: tokens(whole.generate([r])[r.id]) for r in requests}
        together = whole.generate(requests, chunk=4)
        assert {name: tokens(found) for name, found in together.items()} == alone

    def test_tokens_depend_on_the_whole_prompt(self, whole: Route) -> None:
        """Prompts with the same last token: a stage that ignores the KV would not tell them apart."""
        sampling = Sampling(temperature=0.0, max_tokens=8, logprobs=3)
        first = whole.generate([asked("a", (5, 9, 23, 8), sampling)])["a"]
        other = whole.generate([asked("a", (61, 70, 11, 8), sampling)])["a"]
        assert first != other

    def test_two_stages_equal_one(self, whole: Route, halves: Route) -> None:
        requests = [asked(f"r{i}", prompt) for i, prompt in enumerate(PROMPTS)]
        one, two = whole.generate(requests), halves.generate(requests, chunk=5)
        for r in requests:
            assert tokens(two[r.id]) == tokens(one[r.id])
        for runner in halves.runners:
            assert runner.stats().free_blocks == runner.stats().total_blocks

    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=0.0, max_tokens=10),
            Sampling(temperature=1.2, top_p=0.95, top_k=40, seed=11, max_tokens=10),
            Sampling(temperature=0.8, seed=5, frequency_penalty=1.5, presence_penalty=0.5, max_tokens=10),
        ],
        ids=["greedy", "sampled", "penalties"],
    )
    def test_a_resumed_request_goes_on_exactly(self, whole: Route, halves: Route, sampling: Sampling) -> None:
        request = asked("a", PROMPTS[0], sampling)
        undisturbed = whole.generate([request])["a"]
        for route in (whole, halves):
            for done in (1, 4):
                resumed = msgspec.structs.replace(request, generated=tuple(tokens(undisturbed)[:done]))
                rest = route.generate([resumed], chunk=3)["a"]
                assert tokens(rest) == tokens(undisturbed)[done:]
                assert [s.position for s in rest] == [s.position for s in undisturbed[done:]]
                assert rest[-1].finish == undisturbed[-1].finish

    def test_sampling_is_a_function_of_seed_and_position(self, whole: Route) -> None:
        def drawn(name: str, seed: int) -> GenerateRequest:
            return asked(name, PROMPTS[0], Sampling(temperature=1.5, seed=seed, max_tokens=12))

        alone = tokens(whole.generate([drawn("a", 1)])["a"])
        crowd = [drawn("other", 9), asked("greedy", PROMPTS[1]), drawn("b", 1)]
        assert tokens(whole.generate(crowd)["b"]) == alone
        streams = {tuple(tokens(whole.generate([drawn("c", seed)])["c"])) for seed in (1, 2, 3)}
        assert len(streams) > 1, "other seeds draw other tokens"

    def test_max_tokens_ends_a_request(self, whole: Route) -> None:
        for most in (1, 5):
            found = whole.generate([asked("a", sampling=greedy(most))])["a"]
            assert [s.position for s in found] == list(range(most))
            assert [s.finish for s in found] == [None] * (most - 1) + ["length"]

    def test_a_stop_id_ends_a_request(self, whole: Route) -> None:
        free = tokens(whole.generate([asked("a", sampling=greedy(8))])["a"])
        stop = free[3]
        at = free.index(stop)
        found = whole.generate([asked("a", sampling=greedy(8, stop_ids=(stop,)))])["a"]
        assert tokens(found) == free[: at + 1]
        assert [s.finish for s in found] == [None] * at + ["stop"]

    @pytest.mark.parametrize("wanted", [None, 0, 3])
    def test_logprobs(self, whole: Route, wanted: int | None) -> None:
        sampling = Sampling(temperature=0.0, max_tokens=4, logprobs=wanted)
        for found in whole.generate([asked("a", sampling=sampling)])["a"]:
            if wanted is None:
                assert found.logprob is None
                assert found.top == ()
                continue
            assert found.logprob is not None
            assert found.logprob <= 1e-6
            assert len(found.top) == wanted
            ordered = [one.logprob for one in found.top]
            assert ordered == sorted(ordered, reverse=True)
            if wanted:
                assert found.top[0].token == found.token, "temperature 0 takes the most likely token"
                assert found.top[0].logprob == pytest.approx(found.logprob, abs=1e-5)

    def test_nothing_is_sampled_before_the_prompt_is_complete(self, whole: Route) -> None:
        whole.open(asked("a"))
        assert whole.step([("a", 0, PROMPTS[0][:-1])]) == ()
        assert len(whole.step([("a", len(PROMPTS[0]) - 1, PROMPTS[0][-1:])])) == 1

    # ------------------------------------------------------------ figures

    def test_figures(self, whole: Route, runner: StageRunner) -> None:
        before = runner.stats()
        whole.generate([asked("a", sampling=greedy(3))])
        after = runner.stats()
        assert after.steps - before.steps == 3
        assert after.step_seconds >= before.step_seconds

    def test_loading_the_top_module_is_light(self, engine: Engine) -> None:
        module = sys.modules[type(engine).__module__]
        top = sys.modules[module.__name__.partition(".")[0]]
        heavy = {"torch", "vllm", "sglang", "transformers"} & set(vars(top))
        assert not heavy, f"{top.__name__} imports {heavy} at the top"
