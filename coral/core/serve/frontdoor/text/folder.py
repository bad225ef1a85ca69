"""Reads what a model's folder says about text: tokenizer, chat template, stop ids, sampling defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coral.core.serve.frontdoor.text.template import ChatTemplate
from coral.core.serve.frontdoor.text.vocabulary import Vocabulary
from coral.errors import SourceError


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """What the model's makers recommend (generation_config.json); a request's own values win."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class TextModel(Struct, frozen=True, kw_only=True):
    """All of a model that the front door knows. `template` is None for models that were never taught to chat.

    `stop_ids` end a generation. `id_limit`: token ids are below it (the embedding's rows).
    """

    vocabulary: Vocabulary
    template: ChatTemplate | None
    stop_ids: tuple[int, ...]
    id_limit: int
    defaults: SamplingDefaults


def load_text(folder: Path) -> TextModel:
    """Takes tenths of a second for a large vocabulary. Raises SourceError, naming the file."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else the library warns at every fork
    vocabulary = Vocabulary.load(folder / "tokenizer.json")
    tokenizer_config = _read(folder / "tokenizer_config.json")
    generation = _read(folder / "generation_config.json")
    config = _read(folder / "config.json")
    special = _special_tokens(tokenizer_config, _read(folder / "special_tokens_map.json"))
    rows = config.get("vocab_size")
    return TextModel(
        vocabulary=vocabulary,
        template=_template(folder, tokenizer_config, special),
        stop_ids=_stop_ids(generation, config, vocabulary.id_of(special.get("eos_token", ""))),
        id_limit=rows if isinstance(rows, int) else vocabulary.size,
        defaults=_defaults(generation),
    )


def _read(path: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SourceError(f"{path} is no JSON object: {error}", mend="take the model's files anew") from error


def _special_tokens(*sources: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for name, value in source.items():
            if not name.endswith("_token"):
                continue
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.setdefault(name, text)
    return found


def _template(folder: Path, tokenizer_config: dict[str, Any], special: dict[str, str]) -> ChatTemplate | None:
    """From chat_template.jinja, chat_template.json or tokenizer_config.json, in this order."""
    alone = folder / "chat_template.jinja"
    if alone.is_file():
        return ChatTemplate(alone.read_text("utf-8"), special, where=str(alone))
    for name, source in (
        ("chat_template.json", _read(folder / "chat_template.json")),
        ("tokenizer_config.json", tokenizer_config),
    ):
        template = source.get("chat_template")
        if isinstance(template, list):  # several, by name
            named = {
                entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
            }
            template = named.get("default")
        if isinstance(template, str):
            return ChatTemplate(template, special, where=str(folder / name))
    return None


def _stop_ids(generation: dict[str, Any], config: dict[str, Any], eos: int | None) -> tuple[int, ...]:
    """generation_config.json's and the tokenizer's; config.json's only where those name none."""
    ids = _ids(generation.get("eos_token_id")) | (set() if eos is None else {eos})
    return tuple(sorted(ids or _ids(config.get("eos_token_id"))))


def _ids(value: object) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {v for v in values if isinstance(v, int)}


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    if generation.get("do_sample") is False:
        return SamplingDefaults()
    known = {
        name: value
        for name in SamplingDefaults.__struct_fields__
        if isinstance(value := generation.get(name), int | float) and not isinstance(value, bool)
    }
    return msgspec.convert(known, SamplingDefaults)
