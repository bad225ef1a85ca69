"""What all requests share: the coordinator's `Serving`, the models' texts, and who is in flight."""

from __future__ import annotations

import asyncio
import logging

from coral.core.serve.coordinator.serving import ServedModel, Serving
from coral.core.serve.frontdoor.flusher import Flusher
from coral.core.serve.frontdoor.in_flight import InFlight
from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.text.folder import TextModel
from coral.core.serve.frontdoor.text.threads import TextModels, TextThreads
from coral.errors import RequestError, SourceError

log = logging.getLogger(__name__)


class Hall:
    """Behind the front door. `draining`: nothing more is admitted."""

    def __init__(self, serving: Serving, options: FrontDoorOptions) -> None:
        self.serving = serving
        self.options = options
        self.draining = False
        self.flusher = Flusher()
        self.in_flight = InFlight(
            request_timeout_s=options.request_timeout_s, client_timeout_s=options.client_timeout_s
        )
        self.threads = TextThreads(
            options.tokenizer_threads,
            inline=options.inline_chars,
            most=options.max_waiting_prompts,
            retry_after_s=options.retry_after_s,
        )
        self.texts = TextModels(self.threads)
        self._warming: asyncio.Task[None] | None = None

    def check_open(self) -> None:
        if self.draining:
            raise RequestError("The server is shutting down.", status=503, code="service_unavailable")

    def model(self, name: str) -> ServedModel:
        """RequestError: 404 unknown, 503 no instance of it is ready, and it is not known to come back."""
        for model in self.serving.models():
            if model.name == name:
                break
        else:
            raise unknown_model(name, self.serving)
        if not (model.ready or model.coming) or not model.max_request_tokens:
            self.serving.turned_away(name)
            raise RequestError(
                f"No instance of the model {name!r} is ready yet.", status=503, code="model_not_ready"
            )
        return model

    async def text(self, model: ServedModel) -> TextModel:
        """RequestError (500) where the model's folder cannot be read: the log tells the operator why."""
        try:
            return await self.texts.get(model.folder)
        except SourceError as error:
            log.error("model %s: %s", model.name, error)
            raise RequestError(
                f"The tokenizer of the model {model.name!r} cannot be read; the server's log says why.",
                status=500,
                code="model_unreadable",
            ) from error

    def advise(self, error: RequestError) -> RequestError:
        """429 and 503 always tell the client when to come again."""
        if error.status in (429, 503) and error.retry_after_s is None:
            error.retry_after_s = self.options.retry_after_s
        return error

    def warm(self) -> None:
        """Begin to read all models' tokenizers, so that no first request waits for one."""
        self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        for model in self.serving.models():
            try:
                await self.texts.get(model.folder)
            except SourceError as error:  # told again to whoever asks for the model
                log.error("model %s: %s", model.name, error)

    async def close(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait({self._warming})
        self.threads.close()


def unknown_model(name: str, serving: Serving) -> RequestError:
    known = ", ".join(repr(model.name) for model in serving.models()) or "none"
    return RequestError(
        f"The model {name[:200]!r} does not exist. Models served here: {known}.",
        status=404,
        param="model",
        code="model_not_found",
    )
