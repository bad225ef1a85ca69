"""docs/http-api.md names every field, every route and every limit of the front door, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from coral.core.config.serving import ServeSection
from coral.core.serve.frontdoor.openai.chat import ChatRequest
from coral.core.serve.frontdoor.openai.completion import CompletionRequest
from coral.core.serve.frontdoor.openai.fields import MAX_LOGPROBS, MAX_STOPS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http-api.md").read_text()
WORDS = set(re.findall(r"`([a-z_]+)`", PAGE))
FIELDS = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__}


def test_every_field_is_described() -> None:
    assert FIELDS <= WORDS, FIELDS - WORDS


def test_no_field_is_promised_that_is_not_there() -> None:
    section = PAGE.split("## What a request may hold")[1].split("## Answers")[0]
    named = set(re.findall(r"`([a-z_]+)`", section)) - {"include_usage", "i", "developer", "system"}
    assert named <= FIELDS, named - FIELDS


def test_limits_are_those_of_the_config() -> None:
    serve = ServeSection()
    assert f"`request_timeout`\n({serve.request_timeout:g} s" in PAGE
    assert f"`client_timeout` ({serve.client_timeout:g} s" in PAGE
    assert f"`max_body` ({serve.max_body // 2**20} MiB" in PAGE
    assert f"`max_sequences` ({serve.max_sequences}" in PAGE
    assert f"`tokenizer_threads` ({serve.tokenizer_threads}" in PAGE
    assert "`max_inflight`" in PAGE
    assert f"up to {MAX_STOPS})" in PAGE
    assert f"(up to {MAX_LOGPROBS})" in PAGE
