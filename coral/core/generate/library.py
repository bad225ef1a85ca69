"""A template library on disk: one Parquet and one tables file per (model, phase), and a JSON manifest.

Of all combinations that were solved, the *undominated* templates are stored (no smaller set of nodes
does as well); `irreducible` flags those that no split matches. A row holds its nodes and the stage of
each; layers and weights follow from the T̂ table beside it. Files are named by the hash of their inputs
and the manifest is replaced in one step, so a reader sees an old library or a new one, never half of
either.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

import coral
from coral.core.generate.layers import placement, template_id
from coral.core.generate.templates import Found
from coral.core.profile.files import write_atomically
from coral.core.profile.throughput import ThroughputTable
from coral.errors import LibraryError
from coral.hookspecs.planner import TemplateTable
from coral.types.hardware import NodeType
from coral.types.model import Phase, Slo
from coral.types.placement import Template

FORMAT = 2
MOST_STORED = 256
"""Entries that a store keeps, beside those in use."""
MEND = "run `coral templates build`"


class Entry(Struct, frozen=True, kw_only=True):
    """One (model, phase) of the manifest. `inputs` is what `hash` was taken of, for people."""

    model: str
    phase: Phase
    slo: Slo
    in_flight: float
    """Requests in flight per unit of throughput."""
    hash: str
    inputs: dict[str, Any]
    rows: int = 0
    irreducible: int = 0
    combinations: int = 0
    sha256: dict[str, str] = {}
    """Of each file, by name."""

    @property
    def key(self) -> str:
        return f"{self.model}/{self.phase}"


class Manifest(Struct, frozen=True, kw_only=True):
    """What a build asked for. `store` is where the files of its entries lie, relative to the manifest."""

    format: int
    coral: str
    store: str
    entries: dict[str, Entry]


class TemplateLibrary:
    """`coral.hookspecs.planner.Library` over the files of a folder, read when first asked for."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.store = folder / manifest.store
        self._stored: dict[str, StoredTemplates] = {}

    def entry(self, model: str, phase: Phase) -> Entry:
        found = self.manifest.entries.get(f"{model}/{phase}")
        if found is None:
            held = ", ".join(sorted(self.manifest.entries)) or "nothing"
            raise LibraryError(
                f"the template library in {self.folder} has no {phase} templates of model {model!r}; "
                f"it holds {held}",
                mend=MEND,
            )
        return found

    def table(self, model: str, phase: Phase) -> TemplateTable:
        return self._of(model, phase).table

    def template(self, model: str, phase: Phase, row: int) -> Template:
        return self._of(model, phase).template(row)

    def _of(self, model: str, phase: Phase) -> StoredTemplates:
        entry = self.entry(model, phase)
        if entry.key not in self._stored:
            self._stored[entry.key] = StoredTemplates(self.store, entry)
        return self._stored[entry.key]


class StoredTemplates:
    """The templates of one (model, phase) as they lie on disk."""

    def __init__(self, store: Path, entry: Entry) -> None:
        import pyarrow.parquet as parquet

        self.entry = entry
        files = {kind: checked(store / name, entry.sha256[name]) for kind, name in names(entry.hash).items()}
        self.rates = _tables_from(files["tables"])
        types = self.rates.node_types
        rows = parquet.read_table(io.BytesIO(files["rows"]))
        self._stage_of = np.stack(
            [rows[name].to_numpy() for name in rows.column_names if name.startswith("stage_of_")], axis=1
        )
        usage = [rows[f"nodes {kind}"].to_numpy() for kind in types]
        self.table = TemplateTable(
            node_types=types,
            usage=np.stack(usage, axis=1) if usage else np.zeros((rows.num_rows, 0), np.int16),
            throughput=rows["throughput"].to_numpy(),
            irreducible=rows["irreducible"].to_numpy(),
        )

    def template(self, row: int) -> Template:
        if not 0 <= row < self.entry.rows:
            raise LibraryError(f"{self.entry.key} has {self.entry.rows} templates, no row {row}")
        members = np.repeat(np.arange(len(self.table.node_types)), self.table.usage[row])
        stage_of = self._stage_of[row][: len(members)]
        placed = placement(self.rates, members.tolist(), stage_of.tolist())
        throughput = float(self.table.throughput[row])
        if abs(placed.throughput - throughput) > 1e-9 * throughput:
            raise LibraryError(
                f"row {row} of {self.entry.key} claims {throughput}, its placement gives {placed.throughput}",
                mend="delete the library and build it anew",
            )
        return Template(
            id=template_id(self.entry.model, self.entry.phase, placed),
            model=self.entry.model,
            phase=self.entry.phase,
            slo=self.entry.slo,
            placement=placed,
            throughput=throughput,
            max_concurrency=throughput * self.entry.in_flight,
        )


def open_library(folder: Path) -> TemplateLibrary:
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
    except msgspec.MsgspecError as error:
        raise LibraryError(f"{path} is damaged: {error}", mend=f"delete it and {MEND}") from error
    if manifest.format != FORMAT:
        raise LibraryError(f"{path} has format {manifest.format}, this version reads {FORMAT}", mend=MEND)
    return TemplateLibrary(folder, manifest)


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


def stored_entry(store: Path, digest: str) -> Entry | None:
    """The entry with that hash of inputs, if an earlier build left it whole."""
    path = store / f"{digest}.json"
    if not path.is_file():
        return None
    try:
        entry = msgspec.json.decode(path.read_bytes(), type=Entry)
        for name in names(digest).values():
            checked(store / name, entry.sha256.get(name, ""))
    except (OSError, msgspec.MsgspecError, LibraryError):
        return None  # it is built anew
    return entry


def write_entry(store: Path, entry: Entry, rates: ThroughputTable, found: Found) -> Entry:
    """Write the files of one (model, phase), the entry itself last; returns it with what was written."""
    content = {"rows": _rows(rates, found), "tables": _tables(rates)}
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
    """Remove the files of the entries that were written longest ago, beyond `most`; never those to keep."""
    kept = {entry.hash for entry in keep}
    entries = sorted(store.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in entries[most:]:
        digest = path.stem
        if digest not in kept and path.name != "manifest.json":
            for name in (path.name, *names(digest).values()):
                (store / name).unlink(missing_ok=True)


def _rows(rates: ThroughputTable, found: Found) -> bytes:
    import pyarrow
    import pyarrow.parquet as parquet

    columns: dict[str, Any] = {f"nodes {kind}": found.usage[:, c] for c, kind in enumerate(rates.node_types)}
    columns["throughput"] = found.throughput
    columns["irreducible"] = found.irreducible
    columns["stages"] = found.stages
    for i in range(found.stage_of.shape[1]):
        columns[f"stage_of_{i}"] = found.stage_of[:, i]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
    return sink.getvalue()


class _Tables(Struct, frozen=True, kw_only=True):
    """A `ThroughputTable`; arrays as C-ordered little-endian bytes of one shape."""

    node_types: tuple[NodeType, ...]
    shape: tuple[int, int, int, int]
    rate: bytes
    tp: bytes


def _tables(rates: ThroughputTable) -> bytes:
    stages, roles, layers, types = rates.rate.shape
    return msgspec.msgpack.encode(
        _Tables(
            node_types=rates.node_types,
            shape=(stages, roles, layers, types),
            rate=rates.rate.astype("<f8").tobytes(),
            tp=rates.tp.astype("i1").tobytes(),
        )
    )


def _tables_from(content: bytes) -> ThroughputTable:
    stored = msgspec.msgpack.decode(content, type=_Tables)
    return ThroughputTable(
        node_types=stored.node_types,
        rate=np.frombuffer(stored.rate, "<f8").astype(np.float64).reshape(stored.shape),
        tp=np.frombuffer(stored.tp, "i1").astype(np.int8).reshape(stored.shape),
    )
