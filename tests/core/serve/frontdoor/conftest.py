"""A front door on a real port over a scripted `Serving`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from coral.core.serve.coordinator.serving import ServedModel
from coral.core.serve.frontdoor.app import build_app
from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer, serve
from coral.core.serve.frontdoor.text.vocabulary import Vocabulary
from coral.testing.serving import Reply, ScriptedServing
from coral.testing.text_folder import byte_level_tokenizer, write_text_folder
from coral.types.request import GenerateRequest

LIMIT = 512
Scene = Callable[[ScriptedServing, HttpServer], Coroutine[Any, Any, None]]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Play = Callable[..., ScriptedServing]


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_folder(tmp_path_factory.mktemp("text") / "tiny")


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(byte_level_tokenizer())


@pytest.fixture
def loop_factory() -> LoopFactory:
    """A module may override it, to run its scenes on another event loop too."""
    return asyncio.new_event_loop


@pytest.fixture
def play(text_folder: Path, vocabulary: Vocabulary, loop_factory: LoopFactory) -> Play:
    """play(scene, reply): run the scene against a listening front door, at most 30 s.

    `reply` is the text of every answer, or a Reply, or what makes one of a request.
    """

    def run(
        scene: Scene,
        reply: str | Reply | Callable[[GenerateRequest], Reply] = "Hello",
        *,
        options: FrontDoorOptions | None = None,
        step_s: float = 0.001,
    ) -> ScriptedServing:
        if isinstance(reply, str):
            end = vocabulary.id_of("<|im_end|>")
            assert end is not None
            reply = Reply(tokens=(*vocabulary.encode(reply, specials=False), end))
        model = ServedModel(
            name="tiny", folder=str(text_folder), max_request_tokens=LIMIT, created=1_700_000_000, ready=True
        )
        answer = _always(reply) if isinstance(reply, Reply) else reply
        serving = ScriptedServing([model], answer, step_s=step_s)

        async def main() -> None:
            http = await serve(build_app(serving, options), "127.0.0.1", 0)
            try:
                async with asyncio.timeout(30):
                    await scene(serving, http)
            finally:
                await http.stop(grace_s=0.2)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())
        return serving

    return run


def _always(reply: Reply) -> Callable[[GenerateRequest], Reply]:
    return lambda _: reply
