"""Find plugins: entry points of the group `coral`, and single files that a config names."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from coral.core.plugins.registry import PluginRecord, Registry
from coral.hookspecs import ENTRY_POINT_GROUP


def load_plugins(paths: Iterable[Path | str] = ()) -> Registry:
    """Load all installed plugins and those in `paths`. One that fails is recorded and stops nothing."""
    registry = Registry()
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: (p.name, p.value)):
        _add_entry_point(registry, point)
    for path in paths:
        add_file(registry, Path(path))
    return registry


def load_plugin(record: PluginRecord) -> Registry:
    """Load one plugin alone, as another process found it. Where it fails that is recorded."""
    registry = Registry()
    if record.origin.endswith(".py"):
        add_file(registry, Path(record.origin))
    else:
        _add_entry_point(registry, EntryPoint(record.name, record.origin, ENTRY_POINT_GROUP))
    return registry


def _add_entry_point(registry: Registry, point: EntryPoint) -> None:
    record = PluginRecord(
        name=point.name,
        distribution=point.dist.name if point.dist else "",
        version=point.dist.version if point.dist else "",
        origin=point.value,
    )
    try:
        plugin = point.load()
    except (Exception, SystemExit) as error:
        registry.reject(record, f"cannot be imported: {type(error).__name__}: {error}")
        return
    registry.add(plugin, record)


def add_file(registry: Registry, path: Path) -> None:
    """Load a one-file plugin. Its module is named after the file, with a mark of the whole path."""
    mark = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:8]
    name = f"coral_file_{path.stem}_{mark}"
    record = PluginRecord(name=path.stem, distribution=path.name, version="", origin=str(path))
    if not path.is_file():
        registry.reject(record, "there is no such file")
        return
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        registry.reject(record, "is no Python file (its name must end in .py)")
        return
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        registry.reject(record, f"cannot be imported: {type(error).__name__}: {error}")
        return
    registry.add(module, record)
