"""One open request in one node."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from coral.types.request import GenerateRequest, TokenLogprob
from coral.types.stage import Sampled
from coral_engine_mock.tokens import fold, start, token_of


@dataclass(slots=True, eq=False)
class MockSequence:
    request: GenerateRequest
    known: list[int]
    state: int
    done: int = 0
    """Positions that have run here, or whose KV was imported."""
    imported: int = 0

    @classmethod
    def of(cls, request: GenerateRequest) -> MockSequence:
        known = [*request.prompt_ids, *request.generated]
        return cls(request, known, fold(start(request.sampling), known))

    def learn(self, token: int) -> None:
        self.known.append(token)
        self.state = fold(self.state, (token,))

    def sample(self, vocab: int, pattern: tuple[int, ...]) -> Sampled:
        """The next token; it is known from now on."""
        sampling = self.request.sampling
        position = len(self.known) - len(self.request.prompt_ids)
        token = token_of(self.state, position, vocab, pattern)
        stops = token in sampling.stop_ids and position + 1 > sampling.min_tokens
        ends = position + 1 >= sampling.max_tokens
        self.learn(token)
        wanted = sampling.logprobs
        even = -log(vocab)
        return Sampled(
            request=self.request.id,
            position=position,
            token=token,
            finish="stop" if stops else "length" if ends else None,
            logprob=None if wanted is None else even,
            top=tuple(TokenLogprob(token=(token + i) % vocab, logprob=even) for i in range(wanted or 0)),
        )
