"""Discover plugins, check them, choose among them, report what fails. Needs no more than a worker has."""

from coral.core.plugins.discovery import load_plugin, load_plugins
from coral.core.plugins.registry import KINDS, Offering, PluginRecord, Registry

__all__ = ["KINDS", "Offering", "PluginRecord", "Registry", "load_plugin", "load_plugins"]
