"""The servers that `benchmarks.frontdoor` measures, each in a process of its own: ours, and a naive one.

Both stand over the same mock `Serving`: every stream has one token each `step_s`, due by the clock, so that a
server which is behind finds several at once, as it would behind an engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from coral.core.serve.coordinator.serving import ServedModel, TokenSink
from coral.core.serve.frontdoor.app import build_app
from coral.core.serve.frontdoor.server import serve
from coral.core.serve.frontdoor.text.template import ChatTemplate
from coral.errors import RequestError, StoreError
from coral.testing.text_folder import CHATML, write_text_folder
from coral.types.request import GenerateRequest, Sampling, Token


class ClockedServing:
    """Tokens of all streams, by the clock. One callback a step, as one message of an engine."""

    def __init__(self, folder: Path, tokens: int, step_s: float) -> None:
        self._model = ServedModel(
            name="tiny", folder=str(folder), max_request_tokens=4096, created=0, ready=True
        )
        self._tokens = tokens
        self._step_s = step_s
        self._runs: dict[str, tuple[TokenSink, float]] = {}
        self._sent: dict[str, int] = {}
        self._ticking = False

    def models(self) -> Sequence[ServedModel]:
        return (self._model,)

    def state(self) -> dict[str, object]:
        return {"in_flight": len(self._runs)}

    async def plans(self, newest: int) -> list[dict[str, object]]:
        return []

    async def past_plan(self, number: int) -> dict[str, object]:
        raise StoreError(f"no plan {number} is kept")

    def submit(self, request: GenerateRequest, sink: TokenSink) -> None:
        self._runs[request.id] = (sink, time.monotonic())
        self._sent[request.id] = 0
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(self._step_s, self._step)

    def turned_away(self, model: str) -> None:
        """All that is asked for is there."""

    def abort(self, request: str, *, stalled: bool = False) -> None:
        self._runs.pop(request, None)
        self._sent.pop(request, None)

    def _step(self) -> None:
        now = time.monotonic()
        last = self._tokens - 1
        for name, (sink, start) in list(self._runs.items()):
            sent = self._sent[name]
            due = min(self._tokens, int((now - start) / self._step_s))
            if due <= sent:
                continue
            run = [
                Token(
                    request=name,
                    attempt=0,
                    position=i,
                    token=100 + (i * 37) % 250,
                    finish="length" if i == last else None,
                )
                for i in range(sent, due)
            ]
            self._sent[name] = due
            if due == self._tokens:
                self.abort(name)
            sink.on_tokens(run)
        rest_s = max(0.0, self._step_s - (time.monotonic() - now))
        asyncio.get_running_loop().call_later(rest_s, self._step)


class _Queue:
    """The naive sink: a queue for each stream, a task woken for each token."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Token | RequestError] = asyncio.Queue()

    def on_tokens(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            self.queue.put_nowait(token)

    def on_error(self, error: RequestError) -> None:
        self.queue.put_nowait(error)


def naive_app(serving: ClockedServing, folder: Path) -> Starlette:
    """What one writes first: Starlette's stack, json, a queue a stream, an event a token."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    template = ChatTemplate(CHATML, {}, where="benchmark")
    count = 0

    async def chat(request: Request) -> StreamingResponse:
        nonlocal count
        body = await request.json()
        ids = tokenizer.encode(template.render(body["messages"], variables={}), add_special_tokens=False).ids
        count += 1
        sink = _Queue()
        name = f"chatcmpl-{count}"
        sampling = Sampling(max_tokens=50)
        serving.submit(GenerateRequest(id=name, model="tiny", prompt_ids=tuple(ids), sampling=sampling), sink)

        async def events() -> AsyncIterator[str]:
            decoder = DecodeStream(skip_special_tokens=True)
            while True:
                token = await sink.queue.get()
                if isinstance(token, RequestError):
                    raise token
                text = decoder.step(tokenizer, token.token) or ""
                yield f"data: {json.dumps(_chunk(name, text, token.finish))}\n\n"
                if token.finish is not None:
                    yield "data: [DONE]\n\n"
                    return

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def _chunk(name: str, text: str, finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return {
        "id": name,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": "tiny",
        "choices": [choice],
    }


async def _serve_naive(app: Starlette) -> int:
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, log_level="warning", access_log=False, backlog=2048
    )
    server = uvicorn.Server(config)
    asyncio.get_running_loop().create_task(server.serve()).add_done_callback(lambda task: task.result())
    while not server.started:  # noqa: ASYNC110 (uvicorn tells it by a flag only)
        await asyncio.sleep(0.01)
    return int(server.servers[0].sockets[0].getsockname()[1])


async def main(variant: str, tokens: int, step_s: float) -> None:
    """Prints the port, and serves until standard input is closed."""
    with TemporaryDirectory() as scratch:
        folder = write_text_folder(Path(scratch))
        serving = ClockedServing(folder, tokens, step_s)
        if variant == "ours":
            port = (await serve(build_app(serving), "127.0.0.1", 0)).port
        else:
            port = await _serve_naive(naive_app(serving, folder))
        print(port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
