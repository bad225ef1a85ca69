"""It has none."""

from __future__ import annotations

from coral.hookspecs.options import Options


class RoundRobinOptions(Options):
    """No options."""
