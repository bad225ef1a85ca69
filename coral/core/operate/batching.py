"""What goes into a step of stage 0: decode rows first, then chunks of prompts, within the step's limits."""

from __future__ import annotations

from dataclasses import dataclass

from coral.types.request import Leg


@dataclass(frozen=True, slots=True)
class Piece:
    """Positions `[start, start + len(tokens))` of one sequence, to run in the next step."""

    request: str
    start: int
    tokens: tuple[int, ...]
    decode: bool = False
    """It is a row that continues the sequence, not a part of what it was opened with."""


@dataclass(slots=True, eq=False)
class _Progress:
    tokens: list[int]
    reserve: int
    prompt: int
    """Tokens it was opened with; what comes after is fed."""
    done: int = 0
    rests: bool = False
    """What is next of it comes from elsewhere, or never: it is not among those that decode."""

    @property
    def ready(self) -> int:
        """Tokens that are known, fit the reservation and have not run."""
        return min(len(self.tokens), self.reserve) - self.done

    @property
    def decoding(self) -> bool:
        return self.done >= self.prompt and not self.rests


class FirstStageBatching:
    """Sequences held at stage 0, and whose turn it is.

    Decode rows go first, in turn. Prompts share what is left of the step, in turn as well: a prompt that
    took a chunk goes to the back, so a long one delays a short one by at most one chunk. While prompts
    wait, one place of the step is kept for them: decode rows alone never fill it.
    A sequence at the edge of its reservation waits there until it is extended.

    A sequence has one row in the pipeline at a time. Were all of them in one batch, one stage would work
    and the others wait: decode rows are cut into as many batches as the pipeline has stages.
    """

    def __init__(self, *, step_tokens: int, step_requests: int, stages: int = 1) -> None:
        if step_tokens < 1 or step_requests < 1 or stages < 1:
            raise ValueError(
                f"a step needs room, not {step_tokens} tokens of {step_requests} requests in {stages} stages"
            )
        self._step_tokens = step_tokens
        self._step_requests = step_requests
        self._stages = stages
        self._sequences: dict[str, _Progress] = {}
        self._decodes: dict[str, None] = {}
        self._prompts: dict[str, None] = {}
        self._owing = False
        """The last step had no room for a prompt."""

    @property
    def ready(self) -> bool:
        """There is something to run."""
        return bool(self._decodes or self._prompts)

    def open(self, request: str, tokens: list[int], reserve: int, *, leg: Leg = "whole") -> None:
        """Start a sequence with all that is known of it. Of a decode leg that need not run, and it starts
        when it is fed; a prefill leg ends with it."""
        done = len(tokens) if leg == "decode" else 0
        self._sequences[request] = _Progress(list(tokens), reserve, len(tokens), done, leg != "whole")
        self._queue(request)

    def feed(self, request: str, token: int) -> None:
        """One more token is known."""
        sequence = self._sequences[request]
        sequence.tokens.append(token)
        sequence.rests = False
        self._queue(request)

    def known(self, request: str) -> int:
        return len(self._sequences[request].tokens)

    def extend(self, request: str, reserve: int) -> None:
        self._sequences[request].reserve = reserve
        self._queue(request)

    def close(self, request: str) -> None:
        """Forget a sequence; an unknown one is ignored."""
        self._sequences.pop(request, None)
        self._decodes.pop(request, None)
        self._prompts.pop(request, None)

    def next(self, prompt_tokens: int | None = None) -> list[Piece]:
        """The next step's pieces, counted as run from now on; at most one per sequence.

        `prompt_tokens`: at most so many of prompts while there are sequences that decode.
        """
        places = min(self._step_requests, self._step_tokens)
        kept = 1 if self._prompts and (places > 1 or self._owing) else 0
        rows = min(places - kept, self._share())
        pieces = [self._take(request, 1) for request in list(self._decodes)[:rows]]
        room = self._step_tokens - len(pieces)
        if prompt_tokens is not None and self._share():
            room = min(room, prompt_tokens)
        for request in list(self._prompts)[: self._step_requests - len(pieces)]:
            if room <= 0:
                break
            piece = self._take(request, room)
            room -= len(piece.tokens)
            pieces.append(piece)
        self._owing = bool(self._prompts) and len(pieces) == rows
        return pieces

    def _share(self) -> int:
        """Decode rows of one of as many batches as there are stages."""
        decoding = sum(sequence.decoding for sequence in self._sequences.values())
        return -(-decoding // self._stages)

    def _take(self, request: str, room: int) -> Piece:
        sequence = self._sequences[request]
        start, decode = sequence.done, sequence.decoding
        end = start + min(sequence.ready, room)
        sequence.done = end
        self._decodes.pop(request, None)
        self._prompts.pop(request, None)
        self._queue(request)
        return Piece(request, start, tuple(sequence.tokens[start:end]), decode)

    def _queue(self, request: str) -> None:
        """Put a sequence where it belongs; one that is queued keeps its turn."""
        sequence = self._sequences[request]
        if sequence.ready > 0:
            (self._decodes if sequence.decoding else self._prompts).setdefault(request)
