"""Chat templates render as Hugging Face's own renderer does."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from coral.core.serve.frontdoor.text.template import ChatTemplate
from coral.errors import RequestError, SourceError
from coral.testing.text_folder import CHATML

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "é <b>&</b> 東京 {{ 7 * 7 }}"},
    {"role": "assistant", "content": "  ok\n"},
    {"role": "user", "content": "and?"},
]
TEMPLATES = {
    "chatml": CHATML,
    "blocks": """
{%- set ns = namespace(first=true) %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {% if m.role == 'assistant' %}
        {% generation %}
    {{ m.content | trim }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
[{{ m | tojson }}]
    {% endif %}
    {%- if not ns.first %}{% break %}{% endif %}
    {%- set ns.first = false %}
{%- endfor %}
{%- if add_generation_prompt %}<go>{% endif %}
{%- if tools is defined and tools is not none %}tools{% endif %}
{%- if thinking is defined %}{{ thinking }}{% endif %}
""",
    "json": "{{ messages | tojson(indent=2) }}{% if add_generation_prompt %}!{% endif %}",
}


@pytest.mark.parametrize("name", list(TEMPLATES))
@pytest.mark.parametrize("generate", [True, False])
def test_it_renders_as_transformers_does(name: str, generate: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs, _ = render_jinja_template(
        [MESSAGES], chat_template=TEMPLATES[name], add_generation_prompt=generate, thinking="no", **special
    )
    ours = ChatTemplate(TEMPLATES[name], special, where="x")
    assert ours.render(MESSAGES, generate=generate, variables={"thinking": "no"}) == theirs[0]


def render(source: str, messages: list[dict[str, Any]] | None = None) -> str:
    return ChatTemplate(source, {}, where="x").render(messages or MESSAGES, variables={})


def test_what_a_template_refuses_names_the_messages() -> None:
    with pytest.raises(RequestError, match="only user and assistant") as refused:
        render("{{ raise_exception('only user and assistant roles') }}")
    assert (refused.value.status, refused.value.param) == (400, "messages")
    with pytest.raises(RequestError):
        render("{{ messages[0].content + 1 }}")


def test_the_sandbox_holds() -> None:
    for source in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(RequestError):
            render(source)


def test_a_developer_is_a_system_where_the_template_knows_none() -> None:
    ask = [{"role": "developer", "content": "x"}]
    assert "system" in render(CHATML, ask)
    assert "developer" in render("{# developer #}" + CHATML, ask)


def test_time_and_bad_templates() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    with pytest.raises(SourceError, match="no valid Jinja"):
        ChatTemplate("{% for %}", {}, where=str(Path("x")))
