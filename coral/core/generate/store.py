"""The files of a library: written whole or not at all, found again by the hash of their inputs.

Any number of builders may use one store: what has one name has one content, and takes its place in one
step. So a reader sees an old library or a new one, never half of either.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

import coral
from coral.core.generate.files import rows_file, tables_file
from coral.core.generate.manifest import FORMAT, Entry, Manifest, checked, names
from coral.core.generate.templates import Found
from coral.core.profile.files import write_atomically
from coral.core.profile.throughput import ThroughputTable
from coral.errors import LibraryError

MOST_STORED = 256
"""Entries that a store keeps, beside those in use."""
DAY_NS = 86_400 * 10**9


def stored_entry(store: Path, digest: str) -> Entry | None:
    """The entry with that hash of inputs, if an earlier build left it whole."""
    path = store / f"{digest}.json"
    if not path.is_file():
        return None
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        for name in names(digest).values():
            checked(store / name, entry.sha256.get(name, ""))
    except (OSError, msgspec.MsgspecError, RecursionError, LibraryError):
        return None  # it is built anew
    _note_use(path)
    return entry


def write_entry(
    store: Path,
    entry: Entry,
    rates: Sequence[ThroughputTable],
    budgets: Sequence[ThroughputTable] | None,
    found: Found,
) -> Entry:
    """Write the files of one (model, phase), the entry itself last; returns it with what was written."""
    content = {"rows": rows_file(rates[0].node_types, found), "tables": tables_file(rates, budgets)}
    digests: dict[str, str] = {}
    for kind, name in names(entry.hash).items():
        write_atomically(store / name, content[kind])
        digests[name] = hashlib.sha256(content[kind]).hexdigest()
    whole = msgspec.structs.replace(
        entry,
        rows=len(found.throughput),
        irreducible=int(found.irreducible.sum()),
        combinations=found.combinations,
        sha256=digests,
    )
    write_atomically(store / f"{entry.hash}.json", msgspec.json.encode(whole))
    return whole


def write_manifest(folder: Path, store: Path, entries: Mapping[str, Entry]) -> None:
    relative = os.path.relpath(store, folder)
    ordered = dict(sorted(entries.items()))
    manifest = Manifest(format=FORMAT, coral=coral.__version__, store=relative, entries=ordered)
    write_atomically(folder / "manifest.json", msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def forget_old(store: Path, keep: Iterable[Entry], most: int = MOST_STORED) -> None:
    """Remove the files of the entries used longest ago, beyond `most`; never those to keep.

    Also what killed builders left half-written, a day after. That others remove files meanwhile is no
    fault.
    """
    kept = {entry.hash for entry in keep}
    used = _ages(store.glob("*.json"))
    for path in sorted(used, key=used.__getitem__, reverse=True)[most:]:
        if path.stem not in kept and path.name != "manifest.json":
            for name in (path.name, *names(path.stem).values()):
                (store / name).unlink(missing_ok=True)
    half_written = _ages(store.glob(".*"))
    for path, at in half_written.items():
        if used and at < max(used.values()) - DAY_NS:
            path.unlink(missing_ok=True)


def _note_use(path: Path) -> None:
    with contextlib.suppress(OSError):  # a store that is only read from
        path.touch()


def _ages(paths: Iterable[Path]) -> dict[Path, int]:
    """When each file was last written or used, in ns since the epoch."""
    ages: dict[Path, int] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            ages[path] = path.stat().st_mtime_ns
    return ages
