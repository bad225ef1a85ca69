"""The contract of engines, the part on KV: exported, imported piece by piece, and gone on from."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from coral.errors import EngineError
from coral.hookspecs.engine import StageRunner
from coral.testing.contract import Contract
from coral.testing.generation import Load, Route, cut, greedy
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Chunk, KvPiece, Sampled, StageSpec

PROMPTS = ((5, 9, 23, 8, 41, 77, 12), (30, 31, 32), (60, 4, 4, 60, 17, 90, 21, 22, 23, 24, 25, 26, 27))
"""Token ids that every tiny vocabulary has."""
LONG = tuple(4 + 7 * i % 87 for i in range(45))
"""A prompt longer than the windows of the tiny models."""
CUT = (0, 9, 18, 19, 40, 45)
"""Where it is cut into chunks."""


def asked(
    name: str, prompt: tuple[int, ...] = PROMPTS[0], sampling: Sampling | None = None
) -> GenerateRequest:
    return GenerateRequest(id=name, model="tiny", prompt_ids=prompt, sampling=sampling or greedy())


class KvContract(Contract):
    """Needs the fixtures of `coral.testing.engine.EngineContract`, which includes this suite.

    `hands_over_kv`: whether the engine exports and imports KV.
    """

    hands_over_kv = True

    @pytest.fixture(autouse=True)
    def _hands_over(self, request: pytest.FixtureRequest) -> None:
        if request.function.__name__.startswith("test_kv_") and not self.hands_over_kv:
            pytest.skip("this engine hands over no KV, and its suite says so")

    @pytest.mark.parametrize("source", ["whole", "halves"])
    @pytest.mark.parametrize("target", ["whole", "halves"])
    @pytest.mark.parametrize(
        "sampling",
        [
            Sampling(temperature=0.0, max_tokens=10),
            Sampling(temperature=1.2, top_p=0.95, top_k=40, seed=11, max_tokens=10, logprobs=2),
            Sampling(
                temperature=0.8,
                seed=5,
                frequency_penalty=1.5,
                presence_penalty=0.5,
                repetition_penalty=1.3,
                max_tokens=10,
            ),
        ],
        ids=["greedy", "sampled", "penalties"],
    )
    def test_kv_handed_over_in_chunks_goes_on_as_the_undisturbed_run(
        self,
        source: str,
        target: str,
        sampling: Sampling,
        load: Load,
        stage: StageSpec,
        request: pytest.FixtureRequest,
    ) -> None:
        """Each chunk's KV is handed over before the next one runs, between any two cuts of the layers."""
        route: Route = request.getfixturevalue(source)
        other = Route([load(runner_stage) for runner_stage in _stages_of(target, stage)])
        whole = asked("a", LONG, sampling)
        expected = route.generate([whole])["a"]
        for done in (0, 3):  # also where tokens were generated before
            known = msgspec.structs.replace(whole, generated=tuple(s.token for s in expected[:done]))
            found = _handed_over(known, route, _edges(source, stage), other)
            assert [s.token for s in found] == [s.token for s in expected[done:]]
            assert [s.position for s in found] == [s.position for s in expected[done:]]
            assert found[-1].finish == expected[-1].finish
            for one, two in zip(found, expected[done:], strict=True):
                assert (one.logprob is None) == (two.logprob is None)
                if one.logprob is not None:
                    assert one.logprob == pytest.approx(two.logprob, abs=1e-4)
            for runner in (*route.runners, *other.runners):
                assert runner.stats().free_blocks == runner.stats().total_blocks
        other.close()

    def test_kv_handed_over_keeps_min_tokens(self, whole: Route, load: Load, stage: StageSpec) -> None:
        free = [s.token for s in whole.generate([asked("a", LONG)])["a"]]
        sampling = greedy(10, stop_ids=tuple(free[1:3]))
        request = asked("a", LONG, msgspec.structs.replace(sampling, min_tokens=6))
        expected = whole.generate([request])["a"]
        other = Route([load(stage)])
        found = _handed_over(request, whole, [(0, stage.layers_total)], other)
        assert [(s.token, s.finish) for s in found] == [(s.token, s.finish) for s in expected]
        other.close()

    def test_kv_is_exported_while_steps_go_on(self, whole: Route, load: Load, stage: StageSpec) -> None:
        expected = [s.token for s in whole.generate([asked("a", LONG)])["a"]]
        runner, layers = whole.runners[0], (0, stage.layers_total)
        whole.open(asked("a", LONG))
        whole.open(asked("b", PROMPTS[2]))
        whole.step([("a", 0, LONG[:20])])
        lease = runner.export_kv("a", layers, (0, 20))
        whole.step([("a", 20, LONG[20:]), ("b", 0, PROMPTS[2])])
        rest = runner.export_kv("a", layers, (20, len(LONG)))
        other = load(stage)
        moved = asked("a", LONG)
        other.open(moved, moved.known + 16)
        other.import_kv("a", [lease.piece])
        other.import_kv("a", [rest.piece])
        other.resume("a", expected[:1])
        result = other.step([Chunk(request="a", start=len(LONG), n=1, token_ids=(expected[0],))])
        assert [s.token for s in result.sampled] == expected[1:2]
        for one in (lease, rest):
            one.done()
        other.close()

    def test_kv_that_is_leased_keeps_its_blocks(
        self, whole: Route, runner: StageRunner, stage: StageSpec
    ) -> None:
        whole.open(asked("a"))
        whole.step([("a", 0, PROMPTS[0])])
        layers = (0, stage.layers_total)
        first = runner.export_kv("a", layers, (0, 4))
        second = runner.export_kv("a", (0, 1), (4, len(PROMPTS[0])))
        before = _bytes(first.piece)
        runner.release(["a"])
        for number in range(3):  # whoever takes blocks now takes others
            whole.generate([asked(f"b{number}", PROMPTS[2])])
        assert _bytes(first.piece) == before
        assert runner.stats().free_blocks < runner.stats().total_blocks, "leased blocks stay"
        first.done()
        first.done()
        assert runner.stats().free_blocks < runner.stats().total_blocks, "the other lease holds them"
        second.cancel()
        second.done()
        assert runner.stats().free_blocks == runner.stats().total_blocks

    def test_kv_that_is_incomplete_is_refused_and_changes_nothing(
        self, whole: Route, load: Load, stage: StageSpec
    ) -> None:
        expected = [s.token for s in whole.generate([asked("a", LONG)])["a"]]
        runner, layers = whole.runners[0], (0, stage.layers_total)
        whole.open(asked("a", LONG))
        whole.step([("a", 0, LONG)])
        pieces = [runner.export_kv("a", layers, reach).piece for reach in ((0, 20), (20, 30), (30, 45))]
        other = load(stage)
        moved = asked("a", LONG)
        other.open(moved, moved.known + 16)
        gap, lacking = pieces[1], msgspec.structs.replace(pieces[0], sections=pieces[0].sections[1:])
        for wrong in (gap, lacking):
            with pytest.raises(EngineError):
                other.import_kv("a", [wrong])
        with pytest.raises(EngineError):
            other.resume("a", expected[:1])
        other.import_kv("a", pieces[:1])
        with pytest.raises(EngineError):
            other.import_kv("a", [pieces[2]])
        other.import_kv("a", [pieces[2], pieces[1]])  # in whatever order
        other.resume("a", expected[:1])
        result = other.step([Chunk(request="a", start=len(LONG), n=1, token_ids=(expected[0],))])
        assert [s.token for s in result.sampled] == expected[1:2]
        with pytest.raises(EngineError):
            other.import_kv("a", pieces[:1])  # it has run here
        other.close()

    def test_kv_that_is_not_there_is_not_exported(
        self, whole: Route, runner: StageRunner, stage: StageSpec
    ) -> None:
        whole.open(asked("a"))
        whole.step([("a", 0, PROMPTS[0][:3])])
        for layers, reach in (((0, stage.layers_total), (0, 4)), ((0, stage.layers_total + 1), (0, 3))):
            with pytest.raises(EngineError):
                runner.export_kv("a", layers, reach)
        with pytest.raises(EngineError):
            runner.export_kv("nobody", (0, 1), (0, 1))
        runner.release(["a"])
        assert runner.stats().free_blocks == runner.stats().total_blocks


def _stages_of(name: str, stage: StageSpec) -> list[StageSpec]:
    return cut(stage, 1) if name == "halves" else [stage]


def _edges(name: str, stage: StageSpec) -> list[tuple[int, int]]:
    return [(0, 1), (1, stage.layers_total)] if name == "halves" else [(0, stage.layers_total)]


def _handed_over(
    request: GenerateRequest, route: Route, edges: list[tuple[int, int]], other: Route
) -> list[Sampled]:
    """Prefill on `route`, all that follows the first token on `other`; everything is released."""
    prompt = (*request.prompt_ids, *request.generated)
    bounds = [*(b for b in CUT if b < len(prompt)), len(prompt)]
    first = msgspec.structs.replace(request.sampling, max_tokens=len(request.generated) + 1)
    route.open(msgspec.structs.replace(request, sampling=first))
    other.open(request)
    found: list[Sampled] = []
    for start, end in pairwise(bounds):
        found += route.step([("a", start, prompt[start:end])])
        leases = [r.export_kv("a", e, (start, end)) for r, e in zip(route.runners, edges, strict=True)]
        for runner in other.runners:
            runner.import_kv("a", [lease.piece for lease in leases])
        for lease in leases:
            lease.done()
    route.release(["a"])
    assert len(found) == 1
    assert found[0].finish == "length"
    for runner in other.runners:
        runner.resume("a", [found[0].token])
    at, token, total = len(prompt), found[0], request.sampling.max_tokens
    while len(found) + len(request.generated) < total and not (len(found) > 1 and token.finish):
        (token,) = other.step([("a", at, (token.token,))])
        found.append(token)
        at += 1
    other.release(["a"])
    return [msgspec.structs.replace(found[0], finish=None), *found[1:]]


def _bytes(piece: KvPiece) -> list[bytes]:
    return [bytes(data) for section in piece.sections for data in (section.k, section.v)]
