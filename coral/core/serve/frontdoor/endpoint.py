"""The hot routes: POST /v1/chat/completions and /v1/completions, as plain ASGI endpoints."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

import msgspec
from starlette.types import Receive, Scope, Send

from coral.core.serve.frontdoor.body import ClientLeft, read_body
from coral.core.serve.frontdoor.collected import Collected
from coral.core.serve.frontdoor.generation import Generation
from coral.core.serve.frontdoor.hall import Hall
from coral.core.serve.frontdoor.job import Job, chat_job, completion_job
from coral.core.serve.frontdoor.openai.chat import ChatRequest, check_chat
from coral.core.serve.frontdoor.openai.completion import CompletionRequest, check_completion
from coral.core.serve.frontdoor.openai.decode import decode
from coral.core.serve.frontdoor.openai.refusal import plain_error, send_error
from coral.core.serve.frontdoor.stream import EventStream
from coral.errors import RequestError

log = logging.getLogger(__name__)


class Endpoint(ABC):
    """An ASGI application for one path and POST."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    @abstractmethod
    async def job(self, body: bytes) -> Job:
        """What the body asks for. RequestError where it is refused."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        options = self._hall.options
        try:
            self._hall.check_open()
            body = await read_body(
                scope, receive, max_bytes=options.max_body_bytes, timeout_s=options.client_timeout_s
            )
            job = await self.job(body)
            self._hall.check_open()
        except ClientLeft:
            return
        except RequestError as error:
            await send_error(send, self._hall.advise(error), close=error.status == 408)
            return
        except Exception:
            log.exception("%s: a request could not be understood", scope["path"])
            await send_error(send, plain_error(500, "The server failed on this request; its log says why."))
            return
        await self._answer(job, receive, send)

    async def _answer(self, job: Job, receive: Receive, send: Send) -> None:
        hall = self._hall
        generation = Generation(job, hall.serving)
        answer = (
            EventStream(generation, send, hall.flusher, hall.options.max_pending_chars)
            if job.stream
            else Collected(generation, send)
        )
        try:
            generation.start(answer)
        except RequestError as error:
            await send_error(send, hall.advise(error))
            return
        except Exception:
            log.exception("%s could not be started", job.heading.id)
            await send_error(send, plain_error(500, "The server failed on this request; its log says why."))
            return
        hall.in_flight.add(generation)
        watch = asyncio.create_task(_watch(receive, generation))
        try:
            await answer.run()
            if generation.error is not None and not answer.begun and not generation.left:
                await send_error(send, hall.advise(generation.error))
        finally:
            watch.cancel()
            hall.in_flight.remove(generation)
            generation.leave()


class ChatEndpoint(Endpoint):
    _decoder = msgspec.json.Decoder(ChatRequest)

    async def job(self, body: bytes) -> Job:
        request = decode(self._decoder, body)
        messages = check_chat(request, self._hall.options.max_sequences)
        model = self._hall.model(request.model)
        text = await self._hall.text(model)
        return await chat_job(
            request, messages, model, text, self._hall.threads, self._hall.options.deadline_s
        )


class CompletionEndpoint(Endpoint):
    _decoder = msgspec.json.Decoder(CompletionRequest)

    async def job(self, body: bytes) -> Job:
        request = decode(self._decoder, body)
        prompts = check_completion(request, self._hall.options.max_sequences)
        model = self._hall.model(request.model)
        text = await self._hall.text(model)
        return await completion_job(
            request, prompts, model, text, self._hall.threads, self._hall.options.deadline_s
        )


async def _watch(receive: Receive, generation: Generation) -> None:
    """Until the client is gone; cancelled when it has its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.leave()
