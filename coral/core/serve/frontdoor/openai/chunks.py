"""Server-sent events of one streamed answer: all that does not change is built once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coral.core.serve.frontdoor.openai.answer import Heading, Usage
from coral.core.serve.frontdoor.openai.logprobs import LoggedToken, chat_logprobs, completion_logprobs
from coral.core.serve.frontdoor.openai.refusal import error_body
from coral.errors import RequestError

DONE = b"data: [DONE]\n\n"
_json = msgspec.json.encode


class Chunks:
    """The events of one request, as bytes. `counted`: the last event tells the usage, all others `null`."""

    __slots__ = ("_close", "_finish", "_head", "_logprobs", "_opening", "_start", "_text")

    def __init__(self, heading: Heading, *, counted: bool) -> None:
        chat = heading.api == "chat"
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = {"id": heading.id, "object": kind, "created": heading.created, "model": heading.model}
        self._head = b"data: " + _json(head)[:-1]
        self._start = self._head + b',"choices":[{"index":'
        self._text = b',"delta":{"content":' if chat else b',"text":'
        self._logprobs = b'},"logprobs":' if chat else b',"logprobs":'
        self._close = b'],"usage":null}\n\n' if counted else b"]}\n\n"
        role = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        self._opening = role + self._close if chat else b""
        ending = b',"delta":{},"logprobs":' if chat else b',"text":"","logprobs":'
        self._finish = ending

    def opening(self, index: int) -> bytes:
        """The event that opens a choice: the assistant's role in a chat, nothing in a completion."""
        return self._start + str(index).encode() + self._opening if self._opening else b""

    def text_frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the JSON of a choice's text, where there are no log probabilities."""
        before = self._start + str(index).encode() + self._text
        return before, self._logprobs + b'null,"finish_reason":null}' + self._close

    def logged_text(self, index: int, text: str, logged: Sequence[LoggedToken]) -> bytes:
        before, _ = self.text_frame(index)
        shape = self._shape(logged)
        return before + _json(text) + self._logprobs + shape + b',"finish_reason":null}' + self._close

    def finish(self, index: int, reason: str, logged: Sequence[LoggedToken] = ()) -> bytes:
        """The event that ends a choice; `logged` are tokens that came with no text after them."""
        shape = self._shape(logged) if logged else b"null"
        start = self._start + str(index).encode() + self._finish + shape
        return start + b',"finish_reason":' + _json(reason) + b"}" + self._close

    def usage(self, counts: Usage) -> bytes:
        return self._head + b',"choices":[],"usage":' + _json(counts) + b"}\n\n"

    def _shape(self, logged: Sequence[LoggedToken]) -> bytes:
        chat = bool(self._opening)
        return _json(chat_logprobs(logged) if chat else completion_logprobs(logged))


def error_event(error: RequestError) -> bytes:
    """What a stream that has begun says instead of going on; no [DONE] follows."""
    return b"data: " + error_body(error) + b"\n\n"
