"""POST /v1/chat/completions: what is asked."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from coral.core.serve.frontdoor.openai.fields import (
    MAX_LOGPROBS,
    GenerationFields,
    check_fields,
    check_range,
    invalid,
    refuse_fields,
)

ROLES = ("system", "developer", "user", "assistant", "tool")


class Part(Struct, kw_only=True):
    type: str
    text: str | None = None


class FunctionCall(Struct, kw_only=True):
    name: str
    arguments: str = ""


class ToolCall(Struct, kw_only=True):
    """A call that an assistant's earlier message holds; new ones are never made."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(Struct, kw_only=True):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    prediction: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    continue_final_message: Any = None
    documents: Any = None
    echo: Any = None

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def template_variables(self) -> dict[str, Any]:
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        return variables


_REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
}


def check_chat(request: ChatRequest, max_sequences: int) -> list[dict[str, Any]]:
    """The messages of a valid request, as a chat template takes them. RequestError names the field."""
    refuse_fields(request, _REFUSED)
    check_fields(request, max_sequences)
    check_range("max_completion_tokens", request.max_completion_tokens, 1, 2**31 - 1)
    check_range("top_logprobs", request.top_logprobs, 0, MAX_LOGPROBS)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    if request.max_completion_tokens is not None:
        request.max_tokens = request.max_completion_tokens
    if not request.messages:
        raise invalid("messages", "'messages' must hold at least 1 message, not 0.")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(request.messages)]


def _plain(message: Message, path: str) -> dict[str, Any]:
    role = message.role
    if role not in ROLES:
        raise invalid(f"{path}.role", f"'{path}.role' must be one of {', '.join(ROLES)}, not {role[:40]!r}.")
    plain: dict[str, Any] = {"role": role, "content": _text(message, path)}
    if message.tool_calls:
        if role != "assistant":
            raise invalid(f"{path}.tool_calls", f"'{path}.tool_calls' is only allowed with role 'assistant'.")
        plain["tool_calls"] = [
            _plain_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _text(message: Message, path: str) -> str:
    """Parts of text are joined by line breaks, as vLLM does for templates that take strings."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise invalid(f"{path}.content", f"'{path}.content' is required with role {message.role!r}.")
    texts = []
    for i, part in enumerate(content):
        where = f"{path}.content[{i}]"
        if part.type != "text":
            raise invalid(
                f"{where}.type",
                f"'{where}.type' must be 'text', not {part.type[:40]!r}: models here read text only.",
            )
        if part.text is None:
            raise invalid(f"{where}.text", f"'{where}.text' is required.")
        texts.append(part.text)
    if not texts:
        raise invalid(f"{path}.content", f"'{path}.content' must hold at least 1 part, not 0.")
    return "\n".join(texts)


def _plain_call(call: ToolCall, path: str) -> dict[str, Any]:
    """Templates take the arguments as an object; OpenAI's API has them as a string of JSON."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        where = f"{path}.function.arguments"
        raise invalid(where, f"'{where}' must be a JSON object in a string.") from error
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }
