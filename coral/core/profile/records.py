"""Measuring runs as files: measured where the device is, read where the plan is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from coral.core.profile.files import write_atomically
from coral.errors import ProfileError
from coral.types.model import ModelShape
from coral.types.step import Measurements

FORMAT = 1


class Record(Struct, frozen=True, kw_only=True):
    """One measuring run and what was measured. `machine`: model of the CPU it ran on, for people."""

    model: str
    device: str
    """Name of the GPU or CPU device, as offers have it."""
    engine: str
    """As the config names it."""
    shape: ModelShape
    dtype: str
    machine: str
    measurements: Measurements

    @property
    def about(self) -> tuple[ModelShape, str, str, str]:
        """What a step cost is asked for by: shape, dtype, device, engine."""
        return (self.shape, self.dtype, self.device, self.engine)


class RecordFile(Struct, frozen=True, kw_only=True):
    format: int
    runs: tuple[Record, ...]


def write_records(path: Path, runs: Iterable[Record]) -> None:
    """Whole or not at all."""
    content = msgspec.json.encode(RecordFile(format=FORMAT, runs=tuple(runs)))
    mend = "check the folder, its rights, the room on its disk"
    write_atomically(path, msgspec.json.format(content, indent=1), mend=mend)


def read_records(paths: Sequence[Path]) -> tuple[Record, ...]:
    """Raises ProfileError that names the file that cannot be read, is damaged or of another format."""
    found: list[Record] = []
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ProfileError(
                f"cannot read {path}: {error.strerror}", mend="write it with `coral profile run --out`"
            ) from error
        try:
            held = msgspec.json.decode(content, type=RecordFile)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ProfileError(
                f"{path} holds no measuring runs: {error}", mend="write it with `coral profile run --out`"
            ) from error
        if held.format != FORMAT:
            raise ProfileError(
                f"{path} has format {held.format}, this version reads {FORMAT}",
                mend="measure again with this version",
            )
        found += held.runs
    return tuple(found)
