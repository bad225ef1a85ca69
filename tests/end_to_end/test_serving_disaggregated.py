"""`coral serve` with prefill and decode apart: through HTTP the same answers as served mixed, and what breaks
between the two costs no request."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coral.testing.pipeline import pipeline_config
from coral.testing.system import ServingSystem, coral_serve
from coral.testing.tiny import make_tiny
from coral.testing.waiting import wait_until

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="the torch engine needs torch"
)
PROMPT = "The quick brown fox jumps over the lazy dog. " * 3


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny("llama", tmp_path_factory.mktemp("models") / "tiny", layers=6)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of systems that run one after the other, so that their library is built once."""
    return tmp_path_factory.mktemp("state")


def mock_config(tiny: Path, folder: Path, *, apart: bool, **engine: Any) -> dict[str, Any]:
    """Prefill and decode pipelines of two stages where `apart`, else one mixed pipeline."""
    config = pipeline_config(
        tiny,
        cloud=folder / "cloud",
        state=folder / "state",
        cost={"overhead_s": 0.002, "layer_s": 0.0002},
        small=6,
        big=4,
        grace="5s",
        start_timeout="120s",
        disaggregate=apart,
    )
    config["engine"] |= engine
    return config


def torch_config(tiny: Path, folder: Path, *, apart: bool) -> dict[str, Any]:
    config = mock_config(tiny, folder, apart=apart)
    config["engine"] = {"use": "torch", "step_tokens": 32, "kv_blocks": 64}
    del config["models"][0]["shape"]
    config["models"][0]["slo"] = {"prefill": "20s", "decode": "5s"}
    config["generate"] = {"memory_ratio": 1e6, "max_nodes": 1}
    config["clouds"][0]["machines"] = [{"name": "one", "memory": "700MiB", "price": 0.1, "count": 2}]
    return config


@contextlib.contextmanager
def serving(config: dict[str, Any], folder: Path) -> Iterator[ServingSystem]:
    folder.mkdir(parents=True, exist_ok=True)
    with coral_serve(config, folder) as system:
        system.wait_ready(180)
        yield system


Two = tuple[ServingSystem, ServingSystem]


@pytest.fixture(scope="module", params=["mock", pytest.param("torch", marks=needs_torch)])
def both(
    request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Two]:
    """The same model served mixed, and with prefill and decode apart."""
    make = mock_config if request.param == "mock" else torch_config
    one, two = (tmp_path_factory.mktemp(name) for name in ("mixed", "apart"))
    with (
        serving(make(tiny, one, apart=False), one) as mixed,
        serving(make(tiny, two, apart=True), two) as apart,
    ):
        assert [i["phase"] for i in mixed.status()["instances"]] == ["mixed"]
        assert sorted(i["phase"] for i in apart.status()["instances"]) == ["decode", "prefill"]
        yield mixed, apart


GREEDY: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
DRAWN: dict[str, Any] = {**GREEDY, "temperature": 0.9, "top_p": 0.95, "seed": 7}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": PROMPT}],
    "max_tokens": 24,
    "temperature": 0,
}
BATTERY: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("completions", GREEDY),
    "one token": ("completions", {**GREEDY, "max_tokens": 1}),
    "two tokens": ("completions", {**GREEDY, "max_tokens": 2}),
    "two choices": ("completions", {**DRAWN, "n": 2}),
    "several prompts": ("completions", {**GREEDY, "prompt": ["one", "two " * 40, "three"], "n": 1}),
    "seeded": ("completions", DRAWN),
    "logprobs": ("completions", {**GREEDY, "logprobs": 5}),
    "seeded, with logprobs": ("completions", {**DRAWN, "logprobs": 2}),
    "penalties": (
        "completions",
        {**DRAWN, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    ),
    "bias": ("completions", {**DRAWN, "logit_bias": {"65": 5, "66": 5, "67": -100}}),
    "echo": ("completions", {**GREEDY, "echo": True}),
    "chat": ("chat/completions", CHAT),
    "chat with logprobs": ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3}),
    "chat without a limit": ("chat/completions", {k: v for k, v in CHAT.items() if k != "max_tokens"}),
}


def comparable(answer: Any) -> Any:
    """An answer without what is another every time; log probabilities to four digits."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 4)
        if isinstance(value, dict):
            return {key: rounded(one) for key, one in value.items()}
        return [rounded(one) for one in value] if isinstance(value, list) else value

    return rounded({key: value for key, value in answer.items() if key not in ("id", "created")})


def events(system: ServingSystem, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream, to its end."""
    host = (system.url or "").removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    connection.request("POST", path, json.dumps(asked), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def joined(stream: list[Any]) -> Any:
    """What a stream comes to: text and end of every choice, and the usage."""
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for event in stream:
        for choice in event["choices"]:
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            if choice["finish_reason"] is not None:
                ends[choice["index"]] = choice["finish_reason"]
    return texts, ends, stream[-1]["usage"]


@pytest.mark.parametrize("name", BATTERY)
def test_answers_are_the_same_as_served_mixed(both: Two, name: str) -> None:
    path, body = BATTERY[name]
    mixed, apart = (system.post(f"/v1/{path}", body) for system in both)
    assert mixed[0] == apart[0] == 200, (mixed, apart)
    assert comparable(apart[1]) == comparable(mixed[1])


@pytest.mark.parametrize("name", ["greedy", "one token", "two choices", "chat", "seeded"])
def test_streams_are_the_same_as_served_mixed(both: Two, name: str) -> None:
    path, body = BATTERY[name]
    mixed, apart = (joined(events(system, f"/v1/{path}", body)) for system in both)
    assert apart == mixed


def test_stop_strings_and_stop_ids_end_at_the_same_place(both: Two, tiny: Path) -> None:
    """Also at the first token, which prefill samples."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    whole = both[0].post("/v1/completions", GREEDY)[1]["choices"][0]["text"]
    stops = [one for one in dict.fromkeys(whole) if one.isascii() and one.isprintable() and one != " "]
    assert len(stops) > 3
    for stop in stops[:6]:
        for more in ({"stop": [stop]}, {"stop_token_ids": [tokenizer.token_to_id(stop)]}):
            mixed, apart = (system.post("/v1/completions", {**GREEDY, **more}) for system in both)
            assert comparable(apart[1]) == comparable(mixed[1])
            assert apart[1]["choices"][0]["finish_reason"] == "stop"


def test_requests_that_come_together_get_what_each_gets_alone(both: Two) -> None:
    bodies = [{**GREEDY, "prompt": PROMPT[i:] + str(i), "max_tokens": 8 + i} for i in range(12)]
    alone = [both[0].post("/v1/completions", body)[1]["choices"] for body in bodies]
    answers: dict[int, Any] = {}

    def ask(i: int) -> None:
        answers[i] = both[1].post("/v1/completions", bodies[i])[1].get("choices")

    asking = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for one in asking:
        one.start()
    for one in asking:
        one.join(60)
    assert [answers[i] for i in range(len(bodies))] == alone


def test_what_prefill_and_decode_do_is_shown_and_all_room_comes_back(both: Two) -> None:
    apart = both[1]
    before = apart.status()["requests"]
    body = {**GREEDY, "max_tokens": 300, "ignore_eos": True}
    codes: list[int] = []
    asking = threading.Thread(
        target=lambda: codes.extend(apart.post("/v1/completions", body)[0] for _ in range(3))
    )
    asking.start()

    def legs() -> dict[str, dict[str, int]]:
        return {i["phase"]: i["legs"] for i in apart.status()["instances"]}

    wait_until(lambda: legs()["decode"] == {"decode": 1}, 30, "its decode leg")
    wait_until(lambda: legs() == {"prefill": {}, "decode": {"decode": 1}}, 30, "the end of its prefill leg")
    asking.join(60)
    assert codes == [200] * 3
    assert apart.status()["requests"]["handed_over"] == before["handed_over"] + 3
    wait_until(lambda: all_free(apart), 15, "freeing of all KV blocks")


def test_a_prompt_that_is_too_long_is_refused_with_the_limit(both: Two) -> None:
    before = both[1].status()["requests"]
    for system in both:
        limit = system.get("/v1/models")[1]["data"][0]["max_model_len"]
        code, answer = system.post("/v1/completions", {**GREEDY, "prompt": "x" * (limit + 1)})
        assert (code, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert str(limit) in answer["error"]["message"]
    after = both[1].status()["requests"]
    assert after["submitted"] == before["submitted"], "no instance hears of it"


def all_free(system: ServingSystem) -> bool:
    nodes = [n for i in system.status()["instances"] for s in i["stages"] for n in s["nodes"]]
    engines = [node.get("engine", {"requests": 1}) for node in nodes]
    return all(e["requests"] == 0 and e["free_blocks"] == e["total_blocks"] for e in engines)


# ------------------------------------------------------------ what breaks


SLOW = {"overhead_s": 0.02}
"""What a step costs, so that a test can act while a request is under way."""


def test_kill_9_of_either_side_costs_no_request(tiny: Path, state: Path, tmp_path: Path) -> None:
    """The only prefill, or the only decode instance dies under load, by its scheduler or one of its workers:
    streams go on, and are what they would have been."""
    config = mock_config(tiny, tmp_path, apart=True, cost=SLOW)
    config["state"]["folder"] = str(state)
    body = {**GREEDY, "max_tokens": 60}
    with serving(config, tmp_path) as system:
        expected = system.post("/v1/completions", body)[1]["choices"][0]["text"]
        for phase in ("prefill", "decode"):
            for part in ("worker", "scheduler"):
                wait_until(lambda: len(ready(system)) == 2, 60, "both instances")
                texts = _texts_beside_a_kill(system, body, ready(system)[phase], part)
                assert texts == [expected] * 6, (phase, part)
        requests = system.status()["requests"]
        assert (requests["failed"], requests["finished"]) == (0, 25)
        assert requests["moved"] > 0
        assert system.stop() == 0


def ready(system: ServingSystem) -> dict[str, Any]:
    """The instances that are ready, by phase."""
    return {i["phase"]: i for i in system.status()["instances"] if i["state"] == "ready"}


def _texts_beside_a_kill(system: ServingSystem, body: dict[str, Any], victim: Any, part: str) -> list[str]:
    """What six streams come to while a process of `victim` is killed."""
    before = system.status()["requests"]["handed_over"]
    answers: list[Any] = []

    def ask() -> None:
        answers.append(joined(events(system, "/v1/completions", body)))

    asking = [threading.Thread(target=ask) for _ in range(6)]
    for one in asking:
        one.start()
        time.sleep(0.1)
    wait_until(lambda: system.status()["requests"]["handed_over"] > before, 30, "a hand-over")
    nodes = victim["stages"][-1]["nodes"]
    os.kill(victim["scheduler"]["pid"] if part == "scheduler" else nodes[0]["pid"], signal.SIGKILL)
    for one in asking:
        one.join(90)
    return [texts[0] for texts, _, _ in answers]


@pytest.mark.parametrize("fault", [{"fail_at_import": -1}, {"fail_at_export": 1}], ids=["always", "once"])
def test_kv_that_cannot_be_transferred_leaves_no_client_without_an_answer(
    tiny: Path, tmp_path: Path, fault: dict[str, int]
) -> None:
    """The request is repeated, in the end by one instance alone; its deadline would end it in any case."""
    with serving(mock_config(tiny, tmp_path, apart=True, cost=SLOW, **fault), tmp_path) as system:
        began = time.monotonic()
        code, answer = system.post("/v1/completions", {**GREEDY, "timeout": 60})
        assert time.monotonic() - began < 65
        assert code == 200, answer
        again = system.post("/v1/completions", GREEDY)[1]["choices"]
        assert again == answer["choices"], "and a repeated request has the same tokens"
        assert system.status()["requests"]["moved"] >= 1
        code, answer = system.post("/v1/completions", {**GREEDY, "max_tokens": 1000, "timeout": 1})
        assert (code, answer["error"]["code"]) == (504, "timeout")
        wait_until(lambda: all_free(system), 15, "freeing of all KV blocks")
        assert system.stop() == 0


def test_bursts_are_answered_by_their_deadline_and_refused_above_the_limit(
    tiny: Path, tmp_path: Path
) -> None:
    """Also after idling. Whoever is refused is told when to come again."""
    config = mock_config(tiny, tmp_path, apart=True, cost=SLOW, kv_blocks=32)
    config["serve"].update(max_inflight=24, queue={"requests": 8, "timeout": "10s"})
    answers: list[tuple[int, float, str | None]] = []

    def ask(url: str) -> None:
        began = time.monotonic()
        asked = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps({**GREEDY, "timeout": 30}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()
                answers.append((answer.status, time.monotonic() - began, None))
        except urllib.error.HTTPError as error:
            with error:
                answers.append((error.code, time.monotonic() - began, error.headers["Retry-After"]))

    with serving(config, tmp_path) as system:
        for idle_s in (0, 6):
            time.sleep(idle_s)
            answers.clear()
            asking = [threading.Thread(target=ask, args=(system.url,)) for _ in range(60)]
            for one in asking:
                one.start()
            for one in asking:
                one.join(90)
            assert len(answers) == 60, "nobody hangs"
            codes = Counter(code for code, _, _ in answers)
            assert set(codes) <= {200, 429, 503}
            assert codes[200] >= 8
            assert codes[429] > 0, "more than may be in flight"
            for code, seconds, retry in answers:
                assert seconds < 31
                assert code == 200 or 1 <= int(retry or 0) <= 60
            assert system.status()["requests"]["in_flight"] == 0
        wait_until(lambda: all_free(system), 15, "freeing of all KV blocks")
        assert system.stop() == 0


class Diary:
    """What every node has opened and released, and when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def lines(self) -> list[tuple[str, float, str, str]]:
        found = []
        for page in self.folder.iterdir():
            for line in page.read_text().splitlines():
                at, what, request = line.split(" ", 2)
                found.append((page.name, float(at), what, request))
        return found

    def holding(self) -> set[tuple[str, str]]:
        """(node, request) of what is open."""
        held: set[tuple[str, str]] = set()
        for node, _, what, request in sorted(self.lines(), key=lambda line: line[1]):
            held.add((node, request)) if what == "open" else held.discard((node, request))
        return held

    def last(self) -> float:
        return max(at for _, at, _, _ in self.lines())


@pytest.fixture(scope="module")
def watched(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServingSystem, Diary]]:
    folder = tmp_path_factory.mktemp("watched")
    diary = Diary(folder / "diary")
    config = mock_config(tiny, folder, apart=True, cost=SLOW, diary=str(diary.folder), step_tokens=16)
    with serving(config, folder) as system:
        yield system, diary


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("moment", ["prefill", "between", "decode"])
def test_a_client_that_leaves_ends_the_work_of_every_engine_within_half_a_second(
    watched: tuple[ServingSystem, Diary], moment: str, stream: bool
) -> None:
    """While its prompt runs, while its KV waits for a decode instance that does not answer, in decode."""
    system, diary = watched
    scheduler = {i["phase"]: i["scheduler"]["pid"] for i in system.status()["instances"]}["decode"]
    took: list[float] = []
    for _ in range(3):  # the machine may be busy with something else once
        if moment == "between":
            os.kill(scheduler, signal.SIGSTOP)
        try:
            took.append(_leave(system, diary, moment, stream))
        finally:
            os.kill(scheduler, signal.SIGCONT)
        wait_until(lambda: not diary.holding(), 15, "release")
        if took[-1] < 0.5:
            break
    assert min(took) < 0.5
    wait_until(lambda: all_free(system), 15, "freeing of all KV blocks")
    requests = system.status()["requests"]
    assert (requests["in_flight"], requests["failed"]) == (0, 0)


def _leave(system: ServingSystem, diary: Diary, moment: str, stream: bool) -> float:
    """Seconds from the end of the connection until the last engine that works on the request has let go."""
    host = (system.url or "").removeprefix("http://")
    body = {
        **GREEDY,
        "prompt": "x" * (1200 if moment == "prefill" else 40),
        "max_tokens": 500,
        "stream": stream,
    }
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    phases = {i["id"]: i["phase"] for i in system.status()["instances"]}

    def works() -> bool:
        at = {phases[node.rpartition("-")[0]] for node, _ in diary.holding()}
        requests = system.status()["requests"]
        if moment == "prefill":
            return "prefill" in at and requests["tokens"] == before
        if moment == "between":
            return at == {"prefill"} and requests["tokens"] > before
        return at == {"decode"} and requests["tokens"] > before + 3

    before = system.status()["requests"]["tokens"]
    wait_until(works, 30, moment)
    if moment == "between":
        time.sleep(0.2)
    assert connection.sock is not None
    left = time.time()
    connection.sock.close()
    connection.close()
    wait_until(lambda: not diary.holding(), 15, "release")
    return diary.last() - left
