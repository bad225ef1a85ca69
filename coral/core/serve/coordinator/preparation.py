"""Sources, step costs and template library, prepared in a process of its own.

It may take minutes (a conversion, a measuring run, a library) and must end at once on Ctrl-C, which a
thread cannot. It ends itself when the coordinator is gone: its standard input closes then.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coral.core.serve.coordinator.side_process import SideProcess
from coral.core.serve.coordinator.specs import StepLimits
from coral.errors import CoralError
from coral.types.hardware import Gpu, Offer
from coral.types.model import ModelSpec

MODULE = "coral.core.serve.coordinator.preparation_process"


class PreparationAsk(Struct, frozen=True, kw_only=True):
    """`config` is the validated config as plain data, `folder` what its relative paths count from."""

    config: dict[str, Any]
    folder: str
    plugin_paths: tuple[str, ...]
    offers: tuple[Offer, ...]
    gpus: tuple[Gpu, ...]
    """Those that only a cloud knows."""


class Said(Struct, frozen=True, kw_only=True, tag="said"):
    text: str


class TokenizerReady(Struct, frozen=True, kw_only=True, tag="tokenizer"):
    """The folder of a model's config and tokenizer; its weights may still be on the way."""

    model: str
    folder: str


class TemplateProgress(Struct, frozen=True, kw_only=True, tag="progress"):
    done: float
    total: float
    what: str


class Prepared(Struct, frozen=True, kw_only=True, tag="prepared"):
    """`sources`: folder by model. `limits`: by model and GPU, where its engine can serve it there."""

    models: tuple[ModelSpec, ...]
    sources: dict[str, str]
    library: str
    gpus: tuple[Gpu, ...]
    limits: dict[str, dict[str, StepLimits]]


class PreparationFailed(Struct, frozen=True, kw_only=True, tag="failed"):
    message: str
    mend: str | None = None
    exit_code: int = 1


Report = Said | TokenizerReady | TemplateProgress | Prepared | PreparationFailed
_decoder = msgspec.json.Decoder(Report)


class PreparationError(CoralError):
    """What the preparing process failed with, as it said it."""


async def prepared(
    ask: PreparationAsk, log: Path, on_report: Callable[[Said | TokenizerReady | TemplateProgress], None]
) -> Prepared:
    """Run the process to its end. Cancelled, it ends the process and everything below it."""
    process = await SideProcess.start((sys.executable, "-m", MODULE), log, piped=True)
    try:
        process.stdin.write(msgspec.json.encode(ask) + b"\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: told below
            await process.stdin.drain()
        while line := await process.stdout.readline():
            match _decoder.decode(line):
                case Prepared() as result:
                    return result
                case PreparationFailed(message=message, mend=mend, exit_code=exit_code):
                    error = PreparationError(message, mend=mend)
                    error.exit_code = exit_code
                    raise error
                case report:
                    on_report(report)
        code = await process.wait()
        raise PreparationError(
            f"the preparing process ended with status {code}:\n{process.tail()}", mend=f"its log: {log}"
        )
    finally:
        await process.end()
