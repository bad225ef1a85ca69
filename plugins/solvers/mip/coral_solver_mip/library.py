"""CBC's C interface as python-mip binds it, and the few of its functions that python-mip leaves out."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from coral.errors import PluginError

MORE = """
void Cbc_loadProblem(Cbc_Model *model, const int columns, const int rows, const int *start, const int *index,
    const double *value, const double *lower, const double *upper, const double *cost,
    const double *row_lower, const double *row_upper);
int Cbc_getNodeCount(Cbc_Model *model);
int Cbc_getIterationCount(Cbc_Model *model);
int Cbc_secondaryStatus(Cbc_Model *model);
"""


class Library(NamedTuple):
    ffi: Any
    cbc: Any


@cache
def library() -> Library:
    """Raises PluginError where CBC's shared library cannot be loaded."""
    import mip.cbc

    if not mip.cbc.has_cbc:
        raise PluginError(
            "python-mip cannot load the shared library of CBC", mend="pip install --force-reinstall cbcbox"
        )
    mip.cbc.ffi.cdef(MORE)
    return Library(mip.cbc.ffi, mip.cbc.cbclib)
