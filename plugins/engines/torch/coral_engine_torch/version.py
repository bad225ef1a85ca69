"""The version that measurements are filed under: this plugin's, and torch's where it is installed here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def engine_version() -> str:
    own = version("coral-engine-torch")
    try:
        return f"{own}+torch{version('torch').partition('+')[0]}"
    except PackageNotFoundError:
        return own
