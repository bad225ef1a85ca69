"""From a valid request to what is generated: prompts as ids, sampling parameters, how the answer is shown."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from msgspec import Struct

from coral.core.serve.coordinator.serving import ServedModel
from coral.core.serve.frontdoor.openai.answer import Api, Heading, new_id
from coral.core.serve.frontdoor.openai.chat import ChatRequest
from coral.core.serve.frontdoor.openai.completion import CompletionRequest, Prompt
from coral.core.serve.frontdoor.openai.fields import GenerationFields, check_ids
from coral.core.serve.frontdoor.text.folder import SamplingDefaults, TextModel
from coral.core.serve.frontdoor.text.threads import TextThreads
from coral.errors import RequestError
from coral.types.request import GenerateRequest, Sampling

COMPLETION_TOKENS = 16
"""`max_tokens` of a completion that names none, as in OpenAI's API. A chat may use what room there is."""
_SEEDS = 2**63


class Job(Struct, frozen=True, kw_only=True):
    """`requests` in order of choice index: prompt 0's `n`, prompt 1's `n`, ... `echoes`: one each, or "".

    `ends_s`: seconds since the epoch by which the whole answer must be there, 0: whenever.
    """

    heading: Heading
    text: TextModel
    requests: tuple[GenerateRequest, ...]
    echoes: tuple[str, ...]
    prompt_tokens: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    special: bool
    ends_s: float


async def chat_job(
    request: ChatRequest,
    messages: list[dict[str, object]],
    model: ServedModel,
    text: TextModel,
    run: TextThreads,
    limit_s: float | None,
) -> Job:
    """`limit_s`: what any answer may take.

    Raises RequestError (400) where the messages cannot be rendered, or are too long.
    """
    template = text.template
    if template is None:
        raise RequestError(
            f"The model {model.name!r} has no chat template. Use /v1/completions.",
            param="messages",
            code="no_chat_template",
        )

    def encode() -> tuple[int, ...]:
        generate = request.add_generation_prompt is not False
        prompt = template.render(messages, generate=generate, variables=request.template_variables)
        return text.vocabulary.encode(prompt, specials=False)

    size = sum(len(str(message["content"])) for message in messages)
    ids = await run.call(size, encode)
    return _job("chat", request, [ids], [""], model, text, limit_s)


async def completion_job(
    request: CompletionRequest,
    prompts: list[Prompt],
    model: ServedModel,
    text: TextModel,
    run: TextThreads,
    limit_s: float | None,
) -> Job:
    """`limit_s`: what any answer may take.

    Raises RequestError (400) where a prompt is empty or too long, or holds ids the model lacks.
    """

    def encode(prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return text.vocabulary.encode(prompt, specials=True)
        check_ids("prompt", prompt, text.id_limit)
        return tuple(prompt)

    encoded = [await run.call(len(prompt), encode, prompt) for prompt in prompts]
    echoes = [""] * len(prompts)
    if request.echo:
        echoes = [p if isinstance(p, str) else text.vocabulary.decode(p) for p in prompts]
    return _job("completion", request, encoded, echoes, model, text, limit_s)


def _job(
    api: Api,
    request: ChatRequest | CompletionRequest,
    prompts: Sequence[tuple[int, ...]],
    echoes: Sequence[str],
    model: ServedModel,
    text: TextModel,
    limit_s: float | None,
) -> Job:
    param = "messages" if api == "chat" else "prompt"
    check_ids("stop_token_ids", request.stop_token_ids or [], text.id_limit)
    check_ids("logit_bias", list(request.logit_bias or ()), text.id_limit)
    room = [_room(request, len(ids), model.max_request_tokens, param, api) for ids in prompts]
    now_s = time.time()
    heading = Heading(api=api, id=new_id(api), created=int(now_s), model=model.name)
    limits_s = [s for s in (limit_s, request.timeout) if s is not None]
    ends_s = now_s + min(limits_s) if limits_s else 0.0
    n = request.n or 1
    seed = random.getrandbits(62) if request.seed is None else request.seed
    requests = []
    for choice in range(n * len(prompts)):
        which = choice // n
        sampling = _sampling(request, text, room[which], (seed + choice) % _SEEDS)
        name = f"{heading.id}-{choice}"
        requests.append(
            GenerateRequest(
                id=name,
                model=model.name,
                prompt_ids=prompts[which],
                sampling=sampling,
                open_ended=api == "chat" and request.max_tokens is None,
                deadline_s=ends_s,
            )
        )
    return Job(
        heading=heading,
        text=text,
        requests=tuple(requests),
        echoes=tuple(echo for echo in echoes for _ in range(n)),
        prompt_tokens=sum(map(len, prompts)),
        stops=request.stops,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
        special=request.skip_special_tokens is False,
        ends_s=ends_s,
    )


def _room(request: GenerationFields, prompt: int, limit: int, param: str, api: Api) -> int:
    """Tokens that may be generated after a prompt of `prompt` tokens."""
    asked = request.max_tokens
    if prompt == 0:
        raise RequestError(f"'{param}' must not be empty.", param=param, code="invalid_value")
    if prompt + (asked or 1) > limit:
        parts = f"{prompt} in '{param}'" + ("" if asked is None else f", {asked} in 'max_tokens'")
        raise RequestError(
            f"This model's maximum context length is {limit} tokens, but you asked for "
            f"{prompt + (asked or 1)} tokens ({parts}). Shorten the prompt or ask for fewer tokens.",
            param=param if asked is None or prompt >= limit else "max_tokens",
            code="context_length_exceeded",
        )
    if asked is None:
        asked = limit - prompt if api == "chat" else min(COMPLETION_TOKENS, limit - prompt)
    if request.min_tokens is not None and request.min_tokens > asked:
        raise RequestError(
            f"'min_tokens' must be at most 'max_tokens', {asked}, not {request.min_tokens}.",
            param="min_tokens",
            code="invalid_value",
        )
    return asked


def _sampling(request: GenerationFields, text: TextModel, max_tokens: int, seed: int) -> Sampling:
    assert isinstance(request, ChatRequest | CompletionRequest)
    defaults: SamplingDefaults = text.defaults
    eos = () if request.ignore_eos else text.stop_ids
    top_p = _given(request.top_p, defaults.top_p)
    return Sampling(
        temperature=_given(request.temperature, defaults.temperature),
        top_p=max(top_p, 1e-6),  # 0, which OpenAI's API allows, keeps the most likely token
        top_k=max(0, request.top_k if request.top_k is not None else defaults.top_k),
        min_p=_given(request.min_p, defaults.min_p),
        seed=seed,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        stop_ids=tuple(sorted({*eos, *(request.stop_token_ids or ())})),
        logprobs=request.wanted_logprobs,
        logit_bias=request.logit_bias or {},
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
