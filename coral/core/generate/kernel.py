"""Compile a function of numbers and arrays to machine code, cached on disk, without holding the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """numba's `njit`, typed as the function it compiles."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))
