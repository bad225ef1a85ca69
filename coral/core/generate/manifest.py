"""What a library says of itself: the entries of its manifest, and the files that hold each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coral.errors import LibraryError
from coral.types.model import Phase, Slo

FORMAT = 4
MEND = "run `coral templates build`"


class Entry(Struct, frozen=True, kw_only=True):
    """One (model, phase) of the manifest. `inputs` is what `hash` was taken of, for people."""

    model: str
    phase: Phase
    slo: Slo
    hash: str
    inputs: dict[str, Any]
    rows: int = 0
    irreducible: int = 0
    combinations: int = 0
    sha256: dict[str, str] = {}
    """Of each file, by name."""
    refused: dict[str, str] = {}
    """Node types on offer that hold not a single layer, and why."""

    @property
    def key(self) -> str:
        return f"{self.model}/{self.phase}"


class Manifest(Struct, frozen=True, kw_only=True):
    """What a build asked for. `store` is where the files of its entries lie, relative to the manifest."""

    format: int
    coral: str
    store: str
    entries: dict[str, Entry]


def read_manifest(folder: Path) -> Manifest:
    """Raises LibraryError where the folder holds no library or a damaged one."""
    path = folder / "manifest.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise LibraryError(f"there is no template library in {folder}", mend=MEND) from error
    except OSError as error:
        raise LibraryError(f"cannot read {path}: {error.strerror}", mend=f"delete it and {MEND}") from error
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LibraryError(f"{path} is damaged: {error}", mend=f"delete it and {MEND}") from error
    if manifest.format != FORMAT:
        raise LibraryError(f"{path} has format {manifest.format}, this version reads {FORMAT}", mend=MEND)
    return manifest


def names(digest: str) -> Mapping[str, str]:
    """File names of an entry's parts."""
    return {"rows": f"{digest}.parquet", "tables": f"{digest}.msgpack"}


def checked(path: Path, sha256: str) -> bytes:
    """The file's content. Raises LibraryError where it is missing or not what the manifest says."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise LibraryError(f"{path} is missing from the template library", mend=MEND) from error
    except OSError as error:
        raise LibraryError(f"cannot read {path}: {error.strerror}", mend=f"delete it and {MEND}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise LibraryError(f"{path} is damaged: its content is not what the manifest says", mend=MEND)
    return content
