"""Compile a function of numbers and arrays to machine code, cached on disk, without holding the GIL.

numba's cache notices a change of the file that a kernel is in, not of another: a kernel calls kernels of its
own module only (a test holds it), so that none runs what is no longer written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """numba's `njit`, typed as the function it compiles."""
    return cast(Function, numba.njit(cache=True, nogil=True)(function))
