"""A template library on disk: one Parquet and one tables file per (model, phase), and a JSON manifest.

Of all combinations that were solved, the *undominated* templates are stored (no smaller set of nodes
does as well); `irreducible` flags those that no split matches. A row holds its nodes and the stage of
each; layers and weights follow from the T̂ table beside it.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from coral.core.generate.files import tables_of
from coral.core.generate.layers import placement, template_id
from coral.core.generate.manifest import MEND, Entry, Manifest, checked, names, read_manifest
from coral.core.profile.throughput import ThroughputTable
from coral.errors import LibraryError
from coral.hookspecs.planner import TemplateTable
from coral.types.model import Phase
from coral.types.placement import Template


def open_library(folder: Path) -> TemplateLibrary:
    """Raises LibraryError where the folder holds no library or a damaged one."""
    return TemplateLibrary(folder, read_manifest(folder))


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

    def rates(self, model: str, phase: Phase) -> ThroughputTable:
        """T̂ by layers held, of nodes that take all of the SLO."""
        return self._of(model, phase).rates[0]

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
        self.rates, self.budgets = tables_of(files["tables"])
        types = self.rates[0].node_types
        # Without threads: no gain here, and pyarrow's pool now and then aborts the process at its exit.
        rows = parquet.ParquetFile(io.BytesIO(files["rows"]), pre_buffer=False).read(use_threads=False)
        self._stage_of = np.stack(
            [rows[name].to_numpy() for name in rows.column_names if name.startswith("stage_of_")], axis=1
        )
        units = [rows[name].to_numpy() for name in rows.column_names if name.startswith("units_of_")]
        self._units = np.stack(units, axis=1) if units else np.zeros_like(self._stage_of)
        shorter = "target" in rows.column_names
        self._target = rows["target"].to_numpy() if shorter else np.zeros(rows.num_rows, np.int16)
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
        units = self._units[row].tolist()
        target = int(self._target[row])
        rates = self.rates[target]
        budgets = None if self.budgets is None else self.budgets[target]
        placed = placement(rates, members.tolist(), stage_of.tolist(), budgets, units)
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
            max_concurrency=throughput * rates.in_flight,
        )
