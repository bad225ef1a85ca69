"""Lazy references "module:attribute", imported where they are used."""

from __future__ import annotations

import importlib
from typing import Any

from coral.errors import PluginError


def resolve(reference: Any, owner: str) -> Any:
    """What a reference names; anything but a string is the thing itself.

    Raises PluginError, naming `owner`, where the module cannot be imported or lacks the attribute.
    """
    if not isinstance(reference, str):
        return reference
    module, colon, attribute = reference.partition(":")
    if not colon or not module or not attribute:
        raise PluginError(f"{owner}: {reference!r} is no reference", mend="write it as 'module:attribute'")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        mend = None
        if isinstance(error, ModuleNotFoundError) and error.name:
            mend = f"pip install what provides the module {error.name.partition('.')[0]}"
        raise PluginError(f"{owner}: cannot import {reference}: {error}", mend=mend) from error
    return found
