"""Chat templates: Jinja in a sandbox, with the conventions of Hugging Face's tokenizers.

Rendered here and not by transformers, whose import takes seconds. A test holds both to the same text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coral.errors import RequestError, SourceError


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks text for training; here it is just text."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without Jinja's escaping of HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """One model's template. `special` are its special tokens by name (bos_token, eos_token, ...)."""

    def __init__(self, source: str, special: Mapping[str, str], *, where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise SourceError(
                f"the chat template in {where} is no valid Jinja: {error}",
                mend="mend the file, or take the model's files anew",
            ) from error
        self._special = dict(special)
        self._knows_developer = "developer" in source

    def render(
        self, messages: Sequence[dict[str, Any]], *, generate: bool = True, variables: Mapping[str, Any]
    ) -> str:
        """The prompt. `generate`: end with the opening of the assistant's turn.

        A template that does not know the role `developer` is given `system`, which it replaced.
        Raises RequestError (400, `messages`) where the template refuses the conversation.
        """
        if not self._knows_developer:
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        values = {
            **self._special,
            **variables,
            "messages": messages,
            "add_generation_prompt": generate,
            "tools": None,
            "documents": None,
        }
        try:
            return self._template.render(values)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise RequestError(
                f"The model's chat template cannot render these messages: {error}",
                param="messages",
                code="invalid_messages",
            ) from error
