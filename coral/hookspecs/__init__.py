"""The contract between Coral and its plugins: one module per kind.

A plugin imports `coral.types`, `coral.hookspecs`, `coral.errors` and, in its tests, `coral.testing`;
never `coral.core`, and not another plugin.
"""

from __future__ import annotations

import pluggy

PROJECT = "coral"
ENTRY_POINT_GROUP = "coral"
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
