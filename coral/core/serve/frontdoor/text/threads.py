"""Work on text that would hold up the event loop: short at once, long on a few threads, in bounded number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from coral.core.serve.frontdoor.text.folder import TextModel, load_text
from coral.errors import RequestError

P = ParamSpec("P")
R = TypeVar("R")


class TextThreads:
    """`inline`: size up to which a call is made at once. `most`: calls that may wait or run on threads."""

    def __init__(self, threads: int, *, inline: int, most: int, retry_after_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="text")
        self._inline = inline
        self._most = most
        self._retry_after_s = retry_after_s
        self._busy = 0

    async def call(self, size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`size` in characters decides where. RequestError (429) where too many wait already."""
        if size <= self._inline:
            return function(*args, **kwargs)
        if self._busy >= self._most:
            raise RequestError(
                f"{self._busy} long prompts wait to be tokenised, the most this server holds.",
                status=429,
                code="rate_limit_exceeded",
                retry_after_s=self._retry_after_s,
            )
        self._busy += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))
        finally:
            self._busy -= 1

    def load(self, folder: str) -> asyncio.Future[TextModel]:
        return asyncio.get_running_loop().run_in_executor(self._pool, load_text, Path(folder))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class TextModels:
    """What is known of each model's text, read once, on a thread."""

    def __init__(self, threads: TextThreads) -> None:
        self._threads = threads
        self._models: dict[str, TextModel] = {}
        self._loading: dict[str, asyncio.Future[TextModel]] = {}

    async def get(self, folder: str) -> TextModel:
        """Raises SourceError where the folder cannot be read; it is tried again the next time."""
        known = self._models.get(folder)
        if known is not None:
            return known
        loading = self._loading.get(folder)
        if loading is None:
            loading = self._loading[folder] = self._threads.load(folder)
        try:
            self._models[folder] = await asyncio.shield(loading)
        finally:
            if loading.done():
                self._loading.pop(folder, None)
        return self._models[folder]
