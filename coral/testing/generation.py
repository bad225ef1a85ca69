"""Generate tokens through the stages of one model, in one process: what scheduler and workers do, bare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from coral.hookspecs.engine import StageRunner
from coral.types.request import GenerateRequest, Sampling
from coral.types.stage import Chunk, HiddenRows, Sampled, StageSpec

Load = Callable[[StageSpec], StageRunner]


def cut(stage: StageSpec, *bounds: int) -> list[StageSpec]:
    """The stages of a model cut before the layers in `bounds`; `stage` holds all its layers."""
    edges = [0, *bounds, stage.layers_total]
    return [
        msgspec.structs.replace(
            stage,
            node=f"{stage.node}-{i}",
            stage=i,
            stages=len(edges) - 1,
            first_layer=edges[i],
            end_layer=edges[i + 1],
        )
        for i in range(len(edges) - 1)
    ]


def greedy(max_tokens: int = 8, stop_ids: tuple[int, ...] = ()) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=max_tokens, stop_ids=stop_ids)


class Route:
    """One node per stage, in order. Steps are whole: every stage runs before the next step begins."""

    def __init__(self, runners: Sequence[StageRunner]) -> None:
        self.runners = tuple(runners)

    @classmethod
    def loaded(cls, load: Load, stages: Sequence[StageSpec]) -> Route:
        return cls([load(stage) for stage in stages])

    def open(self, request: GenerateRequest) -> None:
        """Reserve for all that the request may become."""
        left = request.sampling.max_tokens - len(request.generated)
        for runner in self.runners:
            runner.open(request, request.known + left)

    def step(self, pieces: Sequence[tuple[str, int, tuple[int, ...]]]) -> tuple[Sampled, ...]:
        """Run (request, start, token ids) through all stages; what the last stage sampled."""
        chunks = [Chunk(request=r, start=start, n=len(ids), token_ids=ids) for r, start, ids in pieces]
        result = self.runners[0].step(chunks)
        for runner in self.runners[1:]:
            assert result.hidden is not None, "a stage that is not the last gives hidden rows"
            result = runner.step(_next_chunks(chunks, result.hidden))
        if len(self.runners) > 1:
            for token in result.sampled:
                self.runners[0].feed(token.request, token.token)
        return result.sampled

    def generate(
        self, requests: Sequence[GenerateRequest], *, chunk: int = 1 << 30
    ) -> dict[str, list[Sampled]]:
        """Open the requests, run them together in chunks of at most `chunk` prompt tokens until they
        finish, release them."""
        known = {r.id: [*r.prompt_ids, *r.generated] for r in requests}
        computed = dict.fromkeys(known, 0)
        out: dict[str, list[Sampled]] = {r.id: [] for r in requests}
        for request in requests:
            self.open(request)
        live = set(known)
        while live:
            pieces = []
            for name in sorted(live):
                ids = tuple(known[name][computed[name] : computed[name] + chunk])
                pieces.append((name, computed[name], ids))
                computed[name] += len(ids)
            for token in self.step(pieces):
                known[token.request].append(token.token)
                out[token.request].append(token)
                if token.finish is not None:
                    live.remove(token.request)
        self.release(list(known))
        return out

    def release(self, requests: Sequence[str]) -> None:
        for runner in self.runners:
            runner.release(requests)

    def close(self) -> None:
        for runner in self.runners:
            runner.close()


def _next_chunks(chunks: Sequence[Chunk], hidden: HiddenRows) -> list[Chunk]:
    """The same pieces for the next stage, each with its own rows."""
    rows, width = hidden.shape
    data = memoryview(hidden.data).cast("B")
    each, at, found = data.nbytes // rows, 0, []
    for chunk in chunks:
        part = bytes(data[at * each : (at + chunk.n) * each])
        piece = HiddenRows(dtype=hidden.dtype, shape=(chunk.n, width), data=part)
        found.append(Chunk(request=chunk.request, start=chunk.start, n=chunk.n, rows=piece))
        at += chunk.n
    assert at == rows, "one row per position"
    return found


def tokens(sampled: Sequence[Sampled]) -> list[int]:
    return [one.token for one in sampled]
