"""`python -m coral.core.serve.coordinator.preparation_process`: started by the coordinator, by no person.

Reads one `PreparationAsk` from its standard input and prints reports, one JSON value a line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import msgspec

from coral.core.config import parse_config
from coral.core.generate.assemble import prepare
from coral.core.generate.engines import EnginesOf
from coral.core.plugins import load_plugins
from coral.core.profile.catalogue import distinct
from coral.core.profile.catalogue import gpu as catalogued
from coral.core.profile.source import resolve
from coral.core.serve.coordinator.preparation import (
    PreparationAsk,
    PreparationFailed,
    Prepared,
    Report,
    Said,
    TemplateProgress,
    TokenizerReady,
)
from coral.core.serve.coordinator.specs import StepLimits
from coral.core.serve.process_tree import descendants
from coral.errors import CoralError
from coral.hookspecs.engine import EngineCapabilities
from coral.types.hardware import Gpu
from coral.types.model import ModelSpec

PROGRESS_EVERY_S = 0.2
LEAVE_GRACE_S = 5.0


class Preparing:
    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)  # what a library prints must not come between the reports
        self._next_progress = 0.0

    def say(self, report: Report) -> None:
        self._out.write(msgspec.json.encode(report) + b"\n")

    def text(self, text: str) -> None:
        self.say(Said(text=text))

    def progress(self, done: float, total: float, what: str) -> None:
        now = time.monotonic()
        if now >= self._next_progress or done >= total:
            self._next_progress = now + PROGRESS_EVERY_S
            self.say(TemplateProgress(done=done, total=total, what=what))

    def run(self, ask: PreparationAsk) -> Prepared:
        registry = load_plugins(ask.plugin_paths)
        config = parse_config(ask.config, registry=registry, folder=ask.folder)
        state = Path(config.state.folder)
        for model in config.models:
            folder = resolve(model.source, state, progress=self.text, weights=False)
            self.say(TokenizerReady(model=model.name, folder=str(folder)))
        own = distinct(ask.gpus)
        models, library = prepare(config, registry, ask.offers, own, self.progress)
        names = sorted({offer.machine_type.gpu for offer in ask.offers})
        gpus = {name: own[name] if name in own else catalogued(name) for name in names}
        engines = EnginesOf(config, registry)
        able = {model.name: capabilities(model, gpus, engines) for model in models}
        sources = {}
        for model in config.models:
            weights = any(one.reads_weights for one in able[model.name].values())
            sources[model.name] = str(resolve(model.source, state, progress=self.text, weights=weights))
        return Prepared(
            models=models,
            sources=sources,
            library=str(library.folder),
            gpus=tuple(gpus.values()),
            limits={
                name: {
                    gpu: StepLimits(tokens=one.max_step_tokens, requests=one.max_step_requests)
                    for gpu, one in by_gpu.items()
                }
                for name, by_gpu in able.items()
            },
        )


def capabilities(
    model: ModelSpec, gpus: Mapping[str, Gpu], engines: EnginesOf
) -> dict[str, EngineCapabilities]:
    """By GPU, where the model's engine can serve it there: what the plan counts on."""
    asked = {name: engines.capabilities(model, gpu) for name, gpu in gpus.items()}
    return {name: one for name, one in asked.items() if one.refusal is None}


def _leave_with_parent() -> None:
    """The coordinator's end of our standard input closes when it is gone, however it went."""
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LEAVE_GRACE_S)
    for pid in reversed(descendants(os.getpid())):
        os.kill(pid, signal.SIGKILL)
    os._exit(1)


def _leave(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preparing = Preparing()
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            return 1
        line += data
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        preparing.say(preparing.run(msgspec.json.decode(line, type=PreparationAsk)))
    except CoralError as error:
        preparing.say(PreparationFailed(message=error.message, mend=error.mend, exit_code=error.exit_code))
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        text = f"cannot prepare the models: {error.filename}: {error.strerror}"
        mend = "make room or give leave to write in state.folder, or choose another"
        preparing.say(PreparationFailed(message=text, mend=mend, exit_code=1))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
