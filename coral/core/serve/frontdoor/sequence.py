"""One sequence of a request: tokens in, text that may be shown out."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Protocol

from coral.core.serve.frontdoor.openai.logprobs import LoggedToken
from coral.core.serve.frontdoor.text.detokenize import Detokenizer
from coral.core.serve.frontdoor.text.stops import StopStrings
from coral.core.serve.frontdoor.text.vocabulary import Vocabulary
from coral.errors import RequestError
from coral.types.request import GenerateRequest, Token


class Listener(Protocol):
    """Whoever shows the text. Called synchronously, once for each call of `on_tokens`."""

    def moved(self, sequence: Sequence) -> None: ...

    def stopped(self, sequence: Sequence) -> None:
        """A stop string was met: nothing more is wanted of the engine."""
        ...

    def failed(self, error: RequestError) -> None: ...


class Sequence:
    """A TokenSink. `generated` counts tokens with the one that ended it; `finish` is None while it runs.

    `waiting`: characters that may be shown and have not been taken.
    """

    __slots__ = (
        "_chars",
        "_detokenizer",
        "_listener",
        "_logged",
        "_shown",
        "_stops",
        "_text",
        "_vocabulary",
        "finish",
        "generated",
        "index",
        "request",
        "waiting",
    )

    def __init__(
        self,
        request: GenerateRequest,
        index: int,
        vocabulary: Vocabulary,
        detokenizer: Detokenizer,
        stops: StopStrings | None,
        listener: Listener,
        echo: str,
    ) -> None:
        self.request = request
        self.index = index
        self.finish: str | None = None
        self.generated = 0
        self._vocabulary = vocabulary
        self._detokenizer = detokenizer
        self._stops = stops
        self._listener = listener
        self._text: list[str] = [echo] if echo else []
        self.waiting = len(echo)
        self._shown = len(echo)
        """Characters that may be shown, taken or not."""
        self._chars = len(echo)
        """Characters detokenized: those shown and those held back."""
        self._logged: list[LoggedToken] = []

    def on_tokens(self, tokens: Tokens[Token]) -> None:
        for token in tokens:
            if self.finish is not None:
                return  # sent before the abort arrived
            if token.finish == "error" or token.finish == "abort":
                self._listener.failed(
                    RequestError("The engine ended this request before it was finished.", status=503)
                )
                return
            self._take_in(token)
        self._listener.moved(self)

    def on_error(self, error: RequestError) -> None:
        self._listener.failed(error)

    def _take_in(self, token: Token) -> None:
        self.generated += 1
        text = ""
        if token.finish != "stop" or token.token not in self.request.sampling.stop_ids:
            text = self._detokenizer.add(token.token)
            if token.logprob is not None and self.request.sampling.logprobs is not None:
                self._log(token, token.logprob)
        if token.finish is not None:
            text += self._detokenizer.end()
        self._chars += len(text)
        stops = self._stops
        if stops is not None and self.generated >= self.request.sampling.min_tokens:
            text, met = stops.add(text)
            if met:
                self._show(text)
                self._logged = [logged for logged in self._logged if logged.offset < self._shown]
                self.finish = "stop"
                if token.finish is None:
                    self._listener.stopped(self)
                return
            if token.finish is not None:
                text += stops.end()
        self._show(text)
        self.finish = token.finish

    def _show(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._shown += len(text)
            self.waiting += len(text)

    def _log(self, token: Token, logprob: float) -> None:
        spell = self._vocabulary.token_bytes
        self._logged.append(
            LoggedToken(
                raw=spell(token.token),
                logprob=logprob,
                offset=self._chars,
                top=tuple((spell(one.token), one.logprob) for one in token.top),
            )
        )

    def take(self) -> tuple[str, list[LoggedToken]]:
        """The text that may be shown and was not yet taken, with its tokens (those held back stay)."""
        text = self._text[0] if len(self._text) == 1 else "".join(self._text)
        self._text.clear()
        self.waiting = 0
        logged = self._logged
        if not logged:
            return text, logged
        if self.finish is None:
            self._logged = [token for token in logged if token.offset >= self._shown]
            logged = [token for token in logged if token.offset < self._shown]
        else:
            self._logged = []
        return text, logged
