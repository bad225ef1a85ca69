"""A template library on disk: one Parquet file per (model, phase) and a JSON manifest."""

from __future__ import annotations

from pathlib import Path

from coral.hookspecs.planner import TemplateTable
from coral.types.model import Phase
from coral.types.placement import Template


class TemplateLibrary:
    """`coral.hookspecs.planner.Library` over the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def table(self, model: str, phase: Phase) -> TemplateTable:
        raise NotImplementedError

    def template(self, model: str, phase: Phase, row: int) -> Template:
        raise NotImplementedError


def open_library(folder: Path) -> TemplateLibrary:
    """Raises LibraryError where the folder holds no library or a damaged one."""
    raise NotImplementedError
