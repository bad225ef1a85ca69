"""Write a new plugin package that works and passes its contract suite as written."""

from coral.cli.scaffold.package import write_plugin

__all__ = ["write_plugin"]
