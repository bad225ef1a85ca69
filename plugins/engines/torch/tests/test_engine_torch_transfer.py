"""KV goes from one cut of the layers, and one block size, to another; generation goes on exactly."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from coral_engine_torch.runner import TorchStageRunner, load

from coral.errors import EngineError
from coral.testing.generation import Route, cut, tokens
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import KvPiece, StageSpec

PROMPT = tuple(range(10, 70))  # longer than the tiny models' windows
SAMPLING = Sampling(temperature=1.0, seed=4, max_tokens=8)
REQUEST = GenerateRequest(id="a", model="m", prompt_ids=PROMPT, sampling=SAMPLING)

EDGES: dict[tuple[int, ...], list[tuple[int, int]]] = {
    (): [(0, 4)],
    (1,): [(0, 1), (1, 4)],
    (2, 3): [(0, 2), (2, 3), (3, 4)],
}


def exported(route: Route, edges: list[tuple[int, int]], parts: list[tuple[int, int]]) -> list[KvPiece]:
    return [
        runner.export_kv("a", layers, part).piece
        for runner, layers in zip(route.runners, edges, strict=True)
        for part in parts
    ]


@pytest.mark.parametrize("family", ["qwen3", "gpt_oss", "mistral"])
@pytest.mark.parametrize("source", list(EDGES), ids=str)
@pytest.mark.parametrize("target", list(EDGES), ids=str)
def test_generation_goes_on_after_a_change_of_layout(
    family: str, source: tuple[int, ...], target: tuple[int, ...], stage_of: Callable[..., StageSpec]
) -> None:
    stage = stage_of(family)
    prefill = Route.loaded(load, cut(stage, *source))
    expected = tokens(prefill.generate([REQUEST])["a"])
    prefill.open(REQUEST)
    (first,) = prefill.step([("a", 0, PROMPT)])
    pieces = exported(prefill, EDGES[source], [(0, 35), (35, len(PROMPT))])
    other = msgspec.structs.replace(stage, options={"kv_blocks": 32, "block_size": 8})
    decode = Route.loaded(load, cut(other, *target))
    decode.open(msgspec.structs.replace(REQUEST, generated=(first.token,)))
    for runner in decode.runners:
        runner.import_kv("a", pieces)
    found = [first.token]
    while len(found) < len(expected):
        (token,) = decode.step([("a", len(PROMPT) + len(found) - 1, (found[-1],))])
        found.append(token.token)
    assert found == expected


@pytest.fixture
def computed(stage_of: Callable[..., StageSpec]) -> TorchStageRunner:
    runner = load(stage_of("mistral"))
    route = Route([runner])
    route.open(REQUEST)
    route.step([("a", 0, PROMPT)])
    return runner


def test_a_windowed_layer_gives_what_its_window_holds(computed: TorchStageRunner) -> None:
    section = computed.export_kv("a", (0, 1), (0, 60)).piece.sections[0]
    assert section.kind == "window"
    assert (section.token_start, section.shape) == (60 - 24 + 1, (23, 2, 32))


def test_a_lease_keeps_blocks_and_ends_once(computed: TorchStageRunner) -> None:
    lease = computed.export_kv("a", (0, 4), (0, 60))
    other = computed.export_kv("a", (1, 2), (10, 20))
    computed.release(["a"])
    held = computed.stats()
    assert held.free_blocks == held.total_blocks - 5
    lease.done()
    lease.done()
    lease.cancel()
    assert computed.stats().free_blocks == held.free_blocks
    other.cancel()
    assert computed.stats().free_blocks == held.total_blocks


def test_what_is_not_there_is_not_exported(computed: TorchStageRunner) -> None:
    for layers, reach in (((0, 5), (0, 9)), ((2, 2), (0, 9)), ((0, 4), (0, 61)), ((0, 4), (9, 9))):
        with pytest.raises(EngineError):
            computed.export_kv("a", layers, reach)
    with pytest.raises(EngineError, match="not open"):
        computed.export_kv("b", (0, 4), (0, 9))


def test_incomplete_or_misshapen_kv_is_refused(
    computed: TorchStageRunner, stage_of: Callable[..., StageSpec]
) -> None:
    whole = computed.export_kv("a", (0, 4), (0, 60)).piece
    target = load(stage_of("mistral"))
    target.open(msgspec.structs.replace(REQUEST, generated=(5,)), 70)
    section = whole.sections[0]
    faults = [
        msgspec.structs.replace(section, shape=(23, 1, 32), k=bytes(section.k)[: 23 * 128]),
        msgspec.structs.replace(section, shape=(23, 2, 16)),
        msgspec.structs.replace(section, token_start=38),
        msgspec.structs.replace(section, dtype="int8"),
        msgspec.structs.replace(section, kind="latent"),
    ]
    for fault in faults:
        with pytest.raises(EngineError):
            target.import_kv("a", [msgspec.structs.replace(whole, sections=(fault, *whole.sections[1:]))])
    with pytest.raises(EngineError, match="missing"):
        target.import_kv("a", [msgspec.structs.replace(whole, sections=whole.sections[1:])])
    target.import_kv("a", [whole])
    with pytest.raises(EngineError, match="does not fit"):
        target.import_kv("a", [whole])


def test_heads_may_come_in_parts(computed: TorchStageRunner, stage_of: Callable[..., StageSpec]) -> None:
    """As from a prefill node of tensor parallel degree 2: each piece has one of the two heads."""
    import numpy as np

    whole = computed.export_kv("a", (0, 4), (0, 60)).piece
    pieces = []
    for head in (0, 1):
        sections = []
        for section in whole.sections:
            k, v = (
                np.frombuffer(data, np.float32).reshape(section.shape)[:, head : head + 1].tobytes()
                for data in (section.k, section.v)
            )
            shape = (section.shape[0], 1, section.shape[2])
            sections.append(msgspec.structs.replace(section, shape=shape, head_start=head, k=k, v=v))
        pieces.append(msgspec.structs.replace(whole, sections=tuple(sections)))
    target = load(stage_of("mistral"))
    target.open(REQUEST, 70)
    target.import_kv("a", pieces)
    again = target.export_kv("a", (0, 4), (0, 60)).piece
    for mine, theirs in zip(again.sections, whole.sections, strict=True):
        assert bytes(mine.k) == bytes(theirs.k)
        assert bytes(mine.v) == bytes(theirs.v)
