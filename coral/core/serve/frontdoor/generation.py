"""One HTTP request in flight: its sequences, from submission until all have ended or nobody wants them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from coral.core.serve.coordinator.serving import Serving
from coral.core.serve.frontdoor.job import Job
from coral.core.serve.frontdoor.openai.answer import Usage, usage
from coral.core.serve.frontdoor.sequence import Sequence
from coral.core.serve.frontdoor.text.stops import StopStrings
from coral.errors import RequestError


class Answer(Protocol):
    """Shows a generation to its client. Called synchronously from within `on_tokens`; must not block."""

    def moved(self, sequence: Sequence) -> None:
        """It has more to show, or has ended."""
        ...

    def ended(self) -> None:
        """Nothing follows: all sequences ended, or the generation failed, or its client left."""
        ...


class Generation:
    """`error`: why it failed. `left`: the client is gone. `progressed_s`: loop time of the last token.

    `blocked_s`: loop time since which the client has taken nothing, None while it does.
    """

    def __init__(self, job: Job, serving: Serving) -> None:
        self.job = job
        self.error: RequestError | None = None
        self.left = False
        self.blocked_s: float | None = None
        self._serving = serving
        self._answer: Answer | None = None
        self._loop = asyncio.get_running_loop()
        self.progressed_s = self._loop.time()
        vocabulary = job.text.vocabulary
        self.sequences = [
            Sequence(
                request,
                index,
                vocabulary,
                vocabulary.detokenizer(request.prompt_ids, special=job.special),
                StopStrings(job.stops) if job.stops else None,
                self,
                job.echoes[index],
            )
            for index, request in enumerate(job.requests)
        ]
        self._open = {sequence.request.id: sequence for sequence in self.sequences}

    def start(self, answer: Answer) -> None:
        """Submit every sequence. RequestError where one is refused; whatever is raised, none of them runs."""
        self._answer = answer
        submitted = []
        try:
            for sequence in self.sequences:
                self._serving.submit(sequence.request, sequence)
                submitted.append(sequence.request.id)
        except BaseException:
            self._answer = None
            self._open.clear()
            for name in submitted:
                self._serving.abort(name)
            raise

    @property
    def over(self) -> bool:
        return not self._open

    @property
    def usage(self) -> Usage:
        return usage(self.job.prompt_tokens, sum(sequence.generated for sequence in self.sequences))

    # ------------------------------------------------------------ of the sequences

    def moved(self, sequence: Sequence) -> None:
        self.progressed_s = self._loop.time()
        answer = self._answer
        if answer is None:
            return
        answer.moved(sequence)
        if sequence.finish is not None:
            self._open.pop(sequence.request.id, None)
            if not self._open:
                answer.ended()

    def stopped(self, sequence: Sequence) -> None:
        # Not from within the coordinator's own delivery of this very token.
        self._loop.call_soon(self._serving.abort, sequence.request.id)

    def failed(self, error: RequestError, *, stalled: bool = False) -> None:
        """The first failure ends all sequences of the request. `stalled`: it is that nothing came."""
        if self._open:
            self.error = error
            self._end(stalled=stalled)

    # ------------------------------------------------------------ of the client

    def leave(self) -> None:
        """The client is gone, or given up: whatever still runs is aborted."""
        if not self.left:
            self.left = True
            self._end()

    def _end(self, *, stalled: bool = False) -> None:
        names = list(self._open)
        self._open.clear()
        for name in names:
            self._loop.call_soon(partial(self._serving.abort, name, stalled=stalled))
        if self._answer is not None:
            self._answer.ended()
