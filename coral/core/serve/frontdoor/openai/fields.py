"""The fields that both completions and chat take, and the ranges they may have.

Unknown fields are ignored, as vLLM does with fields of other makers, *except* those that ask for
another answer than the one we would give: these are known here, and refused by name.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from coral.errors import RequestError

MAX_STOPS = 4
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_LOGPROBS = 20


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None


class GenerationFields(Struct, kw_only=True):
    """None is "not given", as in OpenAI's clients. Fields after `timeout` are refused if set."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    user: str | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    timeout: float | None = None

    best_of: int | None = None
    suffix: str | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None

    @property
    def stops(self) -> tuple[str, ...]:
        stop = self.stop
        return () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)


# What is refused, unless it has one of these values, which ask for what is done anyway.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
}

# field: (least, most); both allowed
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "min_tokens": (0, 2**31 - 1),
    "max_tokens": (1, 2**31 - 1),
    "timeout": (0.001, 86400.0),
}


def invalid(param: str, message: str, code: str = "invalid_value") -> RequestError:
    return RequestError(message, param=param, code=code)


def refuse_fields(request: Struct, refused: dict[str, tuple[Any, ...]]) -> None:
    """RequestError for the first field that is set to anything but what is allowed for it."""
    for name, allowed in refused.items():
        value = getattr(request, name)
        if value is not None and value not in allowed:
            raise invalid(name, f"'{name}' is not supported by this server.", "unsupported_parameter")


def check_range(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise invalid(
            name, f"'{name}' must be between {_short(least)} and {_short(most)}, not {_short(value)}."
        )


def check_fields(request: GenerationFields, max_sequences: int) -> None:
    """Everything that can be said without the model. RequestError names the first field at fault."""
    refuse_fields(request, _REFUSED)
    for name, (least, most) in _RANGES.items():
        value = getattr(request, name)
        if value is not None:
            check_range(name, value, least, most)
    check_range("n", request.n, 1, max_sequences)
    if request.stop is not None:
        _check_stops(request.stops)
    if request.logit_bias:
        _check_size("logit_bias", len(request.logit_bias), MAX_BIASES, "entries")
        for value in request.logit_bias.values():
            check_range("logit_bias", value, -100, 100)
    if request.stop_token_ids:
        _check_size("stop_token_ids", len(request.stop_token_ids), MAX_STOP_IDS, "ids")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")


def _check_stops(stops: tuple[str, ...]) -> None:
    _check_size("stop", len(stops), MAX_STOPS, "strings")
    for stop in stops:
        if not stop:
            raise invalid("stop", "'stop' must not hold an empty string.")
        _check_size("stop", len(stop), MAX_STOP_CHARS, "characters in a string")


def _check_size(name: str, size: int, most: int, what: str) -> None:
    if size > most:
        raise invalid(name, f"'{name}' may have at most {most} {what}, not {size}.")


def check_ids(name: str, ids: list[int], limit: int) -> None:
    """Token ids of a model with `limit` of them."""
    if ids and not (min(ids) >= 0 and max(ids) < limit):
        wrong = next(i for i in ids if not 0 <= i < limit)
        raise invalid(name, f"'{name}' holds token id {_short(wrong)}; this model's are 0 to {limit - 1}.")


def _short(number: int | float) -> str:
    if not isinstance(number, int):
        return f"{number:g}"
    return str(number) if number.bit_length() <= 64 else f"a number of {number.bit_length()} bits"
