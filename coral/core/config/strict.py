"""Numbers and switches that are taken as they are written: no text for a number, no number for a switch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Strict

Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
