"""An answer that is not streamed: one JSON object once all sequences have ended."""

from __future__ import annotations

import asyncio

from starlette.types import Send

from coral.core.serve.frontdoor.generation import Generation
from coral.core.serve.frontdoor.openai.answer import Choice, whole_answer
from coral.core.serve.frontdoor.openai.refusal import send_json
from coral.core.serve.frontdoor.sequence import Sequence


class Collected:
    """An Answer. Its task wakes once, at the end."""

    begun = False

    def __init__(self, generation: Generation, send: Send) -> None:
        self._generation = generation
        self._send = send
        self._end = asyncio.Event()

    def moved(self, sequence: Sequence) -> None:
        """Nothing is shown before the end; the sequence keeps its text."""

    def ended(self) -> None:
        self._end.set()

    async def run(self) -> None:
        generation = self._generation
        await self._end.wait()
        if generation.left or generation.error is not None:
            return
        heading = generation.job.heading
        body = whole_answer(heading, [_choice(s) for s in generation.sequences], generation.usage)
        self.begun = True
        await send_json(self._send, 200, body)


def _choice(sequence: Sequence) -> Choice:
    text, logged = sequence.take()
    asked = sequence.request.sampling.logprobs is not None
    finish = sequence.finish or "stop"
    return Choice(index=sequence.index, text=text, finish=finish, logged=logged if asked else None)
