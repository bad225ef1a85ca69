"""Every refusal has OpenAI's shape, names the field, and says the limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from msgspec import structs

from coral.core.serve.frontdoor.options import FrontDoorOptions
from coral.core.serve.frontdoor.server import HttpServer
from coral.errors import RequestError
from coral.testing.serving import ScriptedServing

Play = Callable[..., ScriptedServing]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
LONG = {"role": "user", "content": "a " * 600}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"model": "tiny", "messages": [USER], **fields}


def completion(**fields: Any) -> tuple[str, dict[str, Any]]:
    return COMPLETION, {"model": "tiny", "prompt": "hi", **fields}


# what is sent; status; param; code; what the message says
TABLE: list[tuple[tuple[str, dict[str, Any]], int, str | None, str, list[str]]] = [
    (chat(model="huge"), 404, "model", "model_not_found", ["'huge'", "'tiny'"]),
    (chat(model=3), 400, "model", "invalid_type", ["'model' must be a string, not an integer"]),
    ((CHAT, {"model": "tiny"}), 400, "messages", "missing_required_parameter", ["'messages' is required"]),
    (chat(messages=[]), 400, "messages", "invalid_value", ["at least 1"]),
    (chat(messages="hi"), 400, "messages", "invalid_type", ["must be an array, not a string"]),
    (chat(messages=[{"role": "robot", "content": ""}]), 400, "messages[0].role", "invalid_value", ["robot"]),
    (chat(messages=[USER, {"role": "user"}]), 400, "messages[1].content", "invalid_value", ["required"]),
    (
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        400,
        "messages[0].content[0].type",
        "invalid_value",
        ["'image_url'", "text only"],
    ),
    (
        chat(messages=[{"role": "user", "content": "a " * 600}]),
        400,
        "messages",
        "context_length_exceeded",
        ["512"],
    ),
    (
        chat(max_tokens=510),
        400,
        "max_tokens",
        "context_length_exceeded",
        ["512 tokens", "510 in 'max_t"],
    ),
    (chat(max_completion_tokens=0), 400, "max_completion_tokens", "invalid_value", ["between 1 and"]),
    (completion(prompt="a " * 600), 400, "prompt", "context_length_exceeded", ["512", "in 'prompt'"]),
    (completion(prompt=""), 400, "prompt", "invalid_value", ["empty"]),
    (completion(prompt=[]), 400, "prompt", "invalid_value", ["empty"]),
    (completion(prompt=["a", 1]), 400, "prompt", "invalid_value", ["array of strings"]),
    (completion(prompt=[99999]), 400, "prompt", "invalid_value", ["99999", "0 to 399"]),
    (completion(max_tokens=0), 400, "max_tokens", "invalid_value", ["between 1 and"]),
    (completion(max_tokens=1.5), 400, "max_tokens", "invalid_type", ["an integer, not a number"]),
    (completion(temperature=2.5), 400, "temperature", "invalid_value", ["between 0 and 2, not 2.5"]),
    (completion(temperature="hot"), 400, "temperature", "invalid_type", ["a number, not a string"]),
    (completion(top_p=1.1), 400, "top_p", "invalid_value", ["between 0 and 1"]),
    (completion(top_k=-2), 400, "top_k", "invalid_value", ["-1"]),
    (completion(min_p=-0.1), 400, "min_p", "invalid_value", ["between 0 and 1"]),
    (completion(presence_penalty=3), 400, "presence_penalty", "invalid_value", ["-2 and 2"]),
    (completion(frequency_penalty=-3), 400, "frequency_penalty", "invalid_value", ["-2 and 2"]),
    (completion(repetition_penalty=0), 400, "repetition_penalty", "invalid_value", ["0.01 and 10"]),
    (completion(seed=2**70), 400, "seed", "invalid_value", ["71 bits"]),
    (completion(n=0), 400, "n", "invalid_value", ["between 1 and 128"]),
    (completion(n=129), 400, "n", "invalid_value", ["between 1 and 128"]),
    (completion(prompt=["a", "b"], n=65), 400, "n", "invalid_value", ["130 sequences", "128"]),
    (completion(stop=["a"] * 5), 400, "stop", "invalid_value", ["at most 4"]),
    (completion(stop=[""]), 400, "stop", "invalid_value", ["empty"]),
    (completion(stop="x" * 2000), 400, "stop", "invalid_value", ["1024", "2000"]),
    (completion(stop_token_ids=[400]), 400, "stop_token_ids", "invalid_value", ["400", "0 to 399"]),
    (completion(min_tokens=17), 400, "min_tokens", "invalid_value", ["at most 'max_tokens', 16"]),
    (completion(logit_bias={"5": 101}), 400, "logit_bias", "invalid_value", ["-100 and 100"]),
    (completion(logit_bias={"500": 1}), 400, "logit_bias", "invalid_value", ["500", "0 to 399"]),
    (completion(logit_bias={"a": 1}), 400, "logit_bias", "invalid_type", ["keys of 'logit_bias'", "integer"]),
    (completion(logprobs=21), 400, "logprobs", "invalid_value", ["between 0 and 20"]),
    (completion(echo=True, logprobs=1), 400, "echo", "unsupported_parameter", ["logprobs"]),
    (completion(best_of=2), 400, "best_of", "unsupported_parameter", ["not supported"]),
    (completion(suffix="x"), 400, "suffix", "unsupported_parameter", ["not supported"]),
    (completion(stream_options={}), 400, "stream_options", "invalid_value", ["'stream' is true"]),
    (chat(top_logprobs=5), 400, "top_logprobs", "invalid_value", ["'logprobs' is true"]),
    (chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value", ["between 0 and 20"]),
    (chat(tools=[{"type": "function"}]), 400, "tools", "unsupported_parameter", ["'tools'"]),
    (chat(functions=[{}]), 400, "functions", "unsupported_parameter", ["'functions'"]),
    (chat(response_format={"type": "json_object"}), 400, "response_format", "unsupported_parameter", ["not"]),
    (chat(guided_json={}), 400, "guided_json", "unsupported_parameter", ["not supported"]),
]


def said(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def test_the_table(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url) as client:
            for (path, body), status, param, code, words in TABLE:
                for stream in (False, True):
                    if "stream_options" in body and stream:
                        continue
                    error = said(await client.post(path, json={**body, "stream": stream}), status)
                    assert (error["param"], error["code"]) == (param, code), error
                    assert error["type"] == "invalid_request_error"
                    for word in words:
                        assert word in error["message"], (word, error)
        assert not serving.submitted

    play(scene)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"nonsense", b"\xff\xfe", b'{"model": "tiny", "prompt": "\\ud800"}'),
        *(b'{"model":"tiny","prompt":"a","zz":' + b"[" * 100_000, b'{"model":"tiny","seed":' + b"9" * 5000),
    ],
    ids=["empty", "open", "array", "word", "bytes", "surrogate", "deep", "digits"],
)
def test_malformed_json(play: Play, body: bytes) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url) as client:
            error = said(await client.post(COMPLETION, content=body), 400)
            assert error["type"] == "invalid_request_error"
            assert error["code"] in ("invalid_json", "invalid_type", "invalid_value")

    play(scene)


def test_harmless_fields_are_taken(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url) as client:
            path, body = chat(
                user="me",
                metadata={"a": "b"},
                store=False,
                response_format={"type": "text"},
                tools=[],
                best_of=1,
                parallel_tool_calls=True,
                something_new=[1],
                temperature=None,
                chat_template_kwargs={"enable_thinking": False},
                messages=[
                    {"role": "developer", "content": "be kind", "name": "boss"},
                    {
                        "role": "user",
                        "content": PARTS,
                    },
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [CALL],
                    },
                    {"role": "tool", "content": "4", "tool_call_id": "1"},
                ],
            )
            assert (await client.post(path, json=body)).status_code == 200

    play(scene)


def test_unknown_routes_methods_and_sizes(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url) as client:
            assert said(await client.get("/v1/nothing"), 404)["message"] == "Unknown route: GET /v1/nothing."
            refused = await client.get(CHAT)
            assert said(refused, 405)["code"] == "method_not_allowed"
            assert refused.headers["allow"] == "POST"
            assert said(await client.post("/health"), 405)["type"] == "invalid_request_error"
            long = json.dumps(completion(prompt="x" * 5000)[1]).encode()
            large = said(await client.post(COMPLETION, content=long), 413)
            assert "4096" in large["message"]

            async def dribble() -> Any:
                for _ in range(10):
                    yield b" " * 1000

            assert said(await client.post(COMPLETION, content=dribble()), 413)["code"] == "request_too_large"

    play(scene, options=FrontDoorOptions(max_body_bytes=4096))


@pytest.mark.parametrize(
    ("status", "retry_after_s", "header"), [(429, 2.5, "3"), (503, None, "1"), (429, 0.1, "1")]
)
def test_what_the_coordinator_refuses(
    play: Play, status: int, retry_after_s: float | None, header: str
) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        serving.refuse = RequestError("too many", status=status, code="full", retry_after_s=retry_after_s)
        async with httpx.AsyncClient(base_url=http.url) as client:
            for stream in (True, False):
                response = await client.post(COMPLETION, json=completion(stream=stream)[1])
                error = said(response, status)
                assert error["type"] == ("rate_limit_error" if status == 429 else "server_error")
                assert response.headers["retry-after"] == header

    play(scene)


def test_readiness_and_state(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        async with httpx.AsyncClient(base_url=http.url) as client:
            assert (await client.get("/ready")).json()["ready"] is True
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/coral/v1/status")).json() == {"in_flight": 0}
            unready_model = structs.replace(serving.served[0], name="b", ready=False, max_request_tokens=0)
            serving.served.append(unready_model)
            ready = await client.get("/ready")
            assert ready.status_code == 503
            assert ready.json()["waiting_for"] == ["b"]
            unready = await client.post(COMPLETION, json=completion(model="b")[1])
            assert said(unready, 503)["code"] == "model_not_ready"
            assert unready.headers["retry-after"] == "1"
            serving.served.clear()
            assert (await client.get("/ready")).status_code == 503

    play(scene)


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_behind_the_door_is_a_500_and_leaves_nothing_running(play: Play, stream: bool) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        serving.refuse, serving.refuse_from = ValueError("a router's fault"), 1
        async with httpx.AsyncClient(base_url=http.url) as client:
            error = said(await client.post(COMPLETION, json=completion(n=2, stream=stream)[1]), 500)
            assert "router" not in error["message"]
        assert len(serving.submitted) == 1
        assert serving.running == 0

    play(scene)


def test_a_folder_without_tokenizer_is_said(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        serving.served[0] = structs.replace(serving.served[0], folder="/nowhere")
        async with httpx.AsyncClient(base_url=http.url) as client:
            error = said(await client.post(COMPLETION, json=completion()[1]), 500)
            assert error["code"] == "model_unreadable"
            assert "/nowhere" not in error["message"]

    play(scene)


def test_a_body_that_does_not_come(play: Play) -> None:
    async def scene(serving: ScriptedServing, http: HttpServer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()

    play(scene, options=FrontDoorOptions(client_timeout_s=0.2))
