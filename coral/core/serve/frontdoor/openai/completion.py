"""POST /v1/completions: what is asked."""

from __future__ import annotations

from typing import Any

from coral.core.serve.frontdoor.openai.fields import (
    MAX_LOGPROBS,
    GenerationFields,
    check_fields,
    check_range,
    invalid,
)

Prompt = str | list[int]


class CompletionRequest(GenerationFields, kw_only=True):
    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """One or several, each text or token ids, as OpenAI allows: string, strings, ids, lists of ids."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise invalid("prompt", "'prompt' must not be empty.")
        if _all_ids(given):
            return [given]
        prompts: list[Prompt] = []
        for item in given:
            if isinstance(item, str) or (isinstance(item, list) and item and _all_ids(item)):
                prompts.append(item)
            else:
                raise invalid(
                    "prompt",
                    "'prompt' must be a string, an array of strings, of token ids, or of arrays of these.",
                )
        return prompts


def _all_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


def check_completion(request: CompletionRequest, max_sequences: int) -> list[Prompt]:
    """The prompts of a valid request. RequestError names the first field at fault."""
    check_fields(request, max_sequences)
    check_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    if request.echo and request.logprobs is not None:
        raise invalid(
            "echo",
            "'echo' together with 'logprobs' is not supported: there are no log probabilities of prompts.",
            "unsupported_parameter",
        )
    prompts = request.prompts()
    sequences = len(prompts) * (request.n or 1)
    if sequences > max_sequences:
        raise invalid(
            "n" if (request.n or 1) > 1 else "prompt",
            f"{len(prompts)} prompts times n={request.n or 1} are {sequences} sequences; "
            f"one request may ask for at most {max_sequences}.",
        )
    return prompts
