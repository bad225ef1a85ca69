"""Whatever is posted, the front door answers with 200 or a refusal, never with 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coral.core.serve.frontdoor.server import HttpServer
from coral.testing.serving import Reply, ScriptedServing

Play = Callable[..., ScriptedServing]
TEXT = {"type": "text", "text": "a"}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ],
    "max_tokens": 4,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 2,
    "seed": 1,
    "logit_bias": {"5": 1},
    "tools": [],
    "response_format": {"type": "text"},
    "chat_template_kwargs": {},
    "stop_token_ids": [7],
    "min_tokens": 1,
}
COMPLETION: dict[str, Any] = {
    **{k: v for k, v in CHAT.items() if k not in ("messages", "logprobs", "top_logprobs")},
    "prompt": ["a", [65, 66]],
    "logprobs": 1,
    "echo": False,
}
KEYS = ["role", "content", "type", "text", "5", "-1", "include_usage"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 2)
    | st.floats(allow_nan=True)
    | st.text(max_size=8)
    | st.sampled_from(["tiny", "user", "text", "system", "tool", "assistant", "{{ 1/0 }}", "<|im_end|>"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "-1", "include_usage"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, start: dict[str, Any]) -> bytes:
    """The request with a few fields replaced, removed or added; now and then cut or garbled as bytes."""
    body = dict(start)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*start, "unknown", "best_of", "functions", "reasoning_effort"]))
        if draw(st.booleans()):
            body[name] = draw(VALUES)
        else:
            body.pop(name, None)
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 3)) :]
    return raw


@given(
    bodies=st.lists(
        st.tuples(st.just("/v1/chat/completions"), mutated(CHAT))
        | st.tuples(st.just("/v1/completions"), mutated(COMPLETION)),
        min_size=40,
        max_size=40,
    )
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, *HealthCheck],
)
def test_no_mutation_of_a_request_gives_500(play: Play, bodies: list[tuple[str, bytes]]) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url, timeout=10) as client:
            answers = await asyncio.gather(*(client.post(path, content=body) for path, body in bodies))
        for answer, (_, body) in zip(answers, bodies, strict=True):
            assert answer.status_code < 500, (body, answer.text)
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert error["message"]
                assert error["type"] == "invalid_request_error"
            else:
                assert b'"error"' not in answer.content, (body, answer.text)

    play(scene, Reply(tokens=(70, 71, 72, 73, 74)))
